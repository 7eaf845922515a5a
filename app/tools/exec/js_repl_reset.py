"""js_repl_reset: restart the session's Node interpreter."""

from app.tools.exec._shared import reset_tool

tool = reset_tool(
    "js_repl",
    "js",
    title="Reset JavaScript",
    description="End the interpreter of js_repl with all that is defined in it; the next cell gets a new one.",
)
