"""Sandbox profiles: what a sandboxed process may write."""

from enum import StrEnum


class Profile(StrEnum):
    """From the narrowest on."""

    READ_ONLY = "read-only"
    WORKSPACE_WRITE = "workspace-write"


def narrower(*profiles: Profile | None) -> Profile:
    """The narrowest of those that were said."""
    said = [profile for profile in profiles if profile is not None]
    return min(said, key=list(Profile).index)
