"""Names of tools as a provider takes them. A name that must change keeps the hash of what it was, so that it is found
again without a table and does not depend on the other tools."""

import hashlib
import re

from app.providers.dialects import NameRule

HASHED = 8
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_]")


def wire_name(name: str, rule: NameRule) -> str:
    """The name itself where it is legal; else made so, with a suffix of its own."""
    if len(name) <= rule.longest and rule.pattern.fullmatch(name):
        return name
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:HASHED]
    stem = _ILLEGAL.sub("_", name)
    if not stem[:1].isalpha():
        stem = f"t_{stem}"
    return f"{stem[: min(rule.longest, 64) - HASHED - 1]}_{digest}"
