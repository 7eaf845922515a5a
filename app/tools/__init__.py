"""Floor 2, the hands: one file is one tool. May import: core, texts.

To add a tool, write `app/tools/<name>.py` with `Args`, `needs`, `run` and
`tool`, and add its line here. Nothing else changes. A tool reaches the world
only through its `Context`: it never opens a path, a socket or a process itself.
"""

from app.core.tools import Tool
from app.tools import (
    apply_edits,
    apply_patch,
    delete_file,
    edit_file,
    exec_command,
    get_file,
    glob,
    grep,
    grep_files,
    js_repl,
    js_repl_reset,
    list_dir,
    list_files,
    put_file,
    python,
    python_reset,
    read_file,
    request_user_input,
    shell,
    shell_command,
    tool_search,
    update_plan,
    view_image,
    write_file,
    write_files,
    write_stdin,
)

BUILTINS: tuple[Tool, ...] = (
    apply_edits.tool,
    apply_patch.tool,
    delete_file.tool,
    edit_file.tool,
    exec_command.tool,
    get_file.tool,
    glob.tool,
    grep.tool,
    grep_files.tool,
    js_repl.tool,
    js_repl_reset.tool,
    list_dir.tool,
    list_files.tool,
    put_file.tool,
    python.tool,
    python_reset.tool,
    read_file.tool,
    request_user_input.tool,
    shell.tool,
    shell_command.tool,
    tool_search.tool,
    update_plan.tool,
    view_image.tool,
    write_file.tool,
    write_files.tool,
    write_stdin.tool,
)
