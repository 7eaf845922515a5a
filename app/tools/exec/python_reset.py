"""python_reset: restart the session's Python interpreter."""

from app.tools.exec._shared import reset_tool

tool = reset_tool(
    "python",
    "python",
    title="Reset Python",
    description="End the interpreter of the python tool with all that is defined in it; the next call gets a new one.",
)
