"""Wrappers: several calls that a model put into one."""

from collections.abc import Sequence

from app.core.runs import Known, ModelCall


def expand(calls: Sequence[ModelCall], known: Known) -> list[ModelCall]:
    """The calls with those in wrappers in their places."""
    return list(calls)
