"""Variables in settings, as editors and shells write them: `${NAME}`, `${env:NAME}`, `${NAME:-default}`."""

import re
from collections.abc import Callable

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(
    rf"\$\{{(?:(?P<editor_only>(?:input|command|config|prompt):[^}}]*)|(?:env:)?(?P<name>{_NAME}|/)(?::-(?P<default>[^}}]*))?)\}}"
)

Find = Callable[[str], str | None]
"""The value of a variable by its name; None if it is not set."""


class Unset(ValueError):
    """A variable without a value; the message names it."""


def expand(text: str, find: Find) -> str:
    """The text with its variables replaced. Other uses of `$`, as in a shell script, stay as they are."""

    def value(found: re.Match[str]) -> str:
        if found["editor_only"] is not None:
            raise Unset(
                f"${{{found['editor_only']}}} can only be filled in by the editor; "
                "set an environment variable and write ${env:NAME} instead."
            )
        known = find(found["name"])
        if found["default"] is not None:
            return known or str(found["default"])
        if known is None:
            raise Unset(f"the variable {found['name']} is not set.")
        return known

    return _VARIABLE.sub(value, text)


def has_variables(text: str) -> bool:
    return _VARIABLE.search(text) is not None
