"""Ids of calls as providers make them: most are like no other, some only count the calls of one message."""

import re
from collections import Counter
from collections.abc import Sequence

from app.core.runs import ModelCall

_WORDS = re.compile(r"functions?|calls?|tools?|toolu|toolcall|shim|id")
_MARKS = "_.:-#/"
MOST_DIGITS = 6
"""A longer number is not counted up."""


def are_own(calls: Sequence[ModelCall]) -> list[bool]:
    """Of each call, whether its id stands for this very call, in whatever message it comes."""
    counts = Counter((call.id, call.sub_index) for call in calls)
    return [counts[call.id, call.sub_index] == 1 and _is_own(call) for call in calls]


def _is_own(call: ModelCall) -> bool:
    if not call.id:
        return False
    bare = _WORDS.sub("", call.id.replace(call.name, "") if call.name else call.id).strip(_MARKS)
    return bool(bare) and not (bare.isdigit() and len(bare) <= MOST_DIGITS)
