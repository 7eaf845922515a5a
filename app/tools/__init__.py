"""Floor 2, the hands: one file is one tool. May import: core, texts.

To add a tool, write `app/tools/<name>.py` with `Args`, `needs`, `run` and
`tool`, and add its line here. Nothing else changes. A tool reaches the world
only through its `Context`: it never opens a path, a socket or a process itself.
"""

from app.core.tools import Tool
from app.tools import apply_edits, list_dir, read_file, request_user_input, tool_search, update_plan

BUILTINS: tuple[Tool, ...] = (
    apply_edits.tool,
    list_dir.tool,
    read_file.tool,
    request_user_input.tool,
    tool_search.tool,
    update_plan.tool,
)
