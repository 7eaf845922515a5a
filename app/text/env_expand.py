"""Variables in settings: `${NAME}`, `${env:NAME}`, `${NAME:-otherwise}`, as editors and shells write them."""

import re
from collections.abc import Callable

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(
    rf"\$\{{(?:(?P<asked>(?:input|command|config|prompt):[^}}]*)|(?:env:)?(?P<name>{_NAME}|/)(?::-(?P<otherwise>[^}}]*))?)\}}"
)

Find = Callable[[str], str | None]
"""What a variable is, by its name; None when it is not set."""


class Unset(ValueError):
    """A variable that has no value here; the sentence names it."""


def expand(text: str, find: Find) -> str:
    """The text with its variables filled in. What only looks like one, as in a shell's script, stays as it is."""

    def value(found: re.Match[str]) -> str:
        if found["asked"] is not None:
            raise Unset(
                f"${{{found['asked']}}} is something only the editor can fill in; "
                "set an environment variable and write ${env:NAME} instead."
            )
        known = find(found["name"])
        if found["otherwise"] is not None:
            return known or str(found["otherwise"])
        if known is None:
            raise Unset(f"the variable {found['name']} is not set.")
        return known

    return _VARIABLE.sub(value, text)


def has_variables(text: str) -> bool:
    return _VARIABLE.search(text) is not None
