"""One file's change as a provider's own patch tool sends it, as the whole patch that our tool takes.

There, a diff is what stands between the lines that name the files. Models also send those lines, or the first lines of
a unified diff; what they say is known already, so they are left out.
"""

import re
from typing import Any

BEGIN = "*** Begin Patch"
END = "*** End Patch"
FILES = ("*** Add File:", "*** Update File:")
HEADS = {
    "create_file": "*** Add File: ",
    "update_file": "*** Update File: ",
    "delete_file": "*** Delete File: ",
}
NO_LAST_END = "\\ No newline at end of file"
_NUMBERED = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@.*")


def patch_of(operation: dict[str, Any]) -> str:
    """The operation as a patch of one file. It has a known type, a path, and a diff where one is needed."""
    kind = operation["type"]
    lines = [] if kind == "delete_file" else _bare(operation["diff"])
    if kind == "create_file":
        lines = _added(lines)
    if kind == "update_file":
        lines = ["@@" if _NUMBERED.fullmatch(line) else line for line in lines]
    return "\n".join([BEGIN, HEADS[kind] + operation["path"], *lines, END]) + "\n"


def _bare(diff: str) -> list[str]:
    """The lines of a diff, without what names the file."""
    text = diff.strip() if diff.strip().startswith(BEGIN) else diff
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not lines[-1]:
        lines.pop()
    if lines and lines[0].strip() == BEGIN:
        lines.pop(0)
    if lines and lines[-1].strip() == END:
        lines.pop()
    if lines and lines[0].startswith(FILES):
        lines.pop(0)
    if len(lines) > 1 and lines[0].startswith("--- ") and lines[1].startswith("+++ "):
        del lines[:2]
    return [line for line in lines if line != NO_LAST_END]


def _added(lines: list[str]) -> list[str]:
    """The lines of a new file, each after a plus. Where none has one, they were sent as they are to be."""
    lines = [line for line in lines if not _NUMBERED.fullmatch(line)]
    if any(line.startswith("+") for line in lines):
        return [line or "+" for line in lines]
    return [f"+{line}" for line in lines]
