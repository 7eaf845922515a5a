"""Layer 2: the built-in tools, one file each. May import: core, text.

To add a tool, write `app/tools/<name>.py` with `Args`, `needs`, `run` and
`tool`, and add its line here. Nothing else changes. A tool reaches the world
only through its `Context`: it never opens a path, a socket or a process itself.
"""

from app.core.tools import Tool
from app.tools import (
    list_mcp_resource_templates,
    list_mcp_resources,
    read_mcp_resource,
    request_user_input,
    tool_search,
    update_plan,
)
from app.tools.exec import exec_command, js_repl, js_repl_reset, python, python_reset, shell, shell_command, write_stdin
from app.tools.files import (
    apply_edits,
    apply_patch,
    delete_file,
    edit_file,
    get_file,
    glob,
    grep,
    grep_files,
    list_dir,
    list_files,
    put_file,
    read_file,
    str_replace_based_edit_tool,
    view_image,
    write_file,
    write_files,
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
    list_mcp_resource_templates.tool,
    list_mcp_resources.tool,
    put_file.tool,
    python.tool,
    python_reset.tool,
    read_file.tool,
    read_mcp_resource.tool,
    request_user_input.tool,
    shell.tool,
    shell_command.tool,
    str_replace_based_edit_tool.tool,
    tool_search.tool,
    update_plan.tool,
    view_image.tool,
    write_file.tool,
    write_files.tool,
    write_stdin.tool,
)
