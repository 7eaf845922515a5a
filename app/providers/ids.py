"""Ids of calls as providers make them: most are like no other, some only count the calls of one message."""

import re
from collections.abc import Sequence

from app.core.runs import ModelCall

_WORDS = re.compile(r"functions?|calls?|tools?|toolu|toolcall|shim|id")
_MARKS = "_.:-#/"
MOST_DIGITS = 6
"""A longer number is not counted up."""


def is_own(call: ModelCall, calls: Sequence[ModelCall]) -> bool:
    """Whether its id stands for this very call, in whatever message it comes."""
    if not call.id or sum((one.id, one.sub_index) == (call.id, call.sub_index) for one in calls) > 1:
        return False
    bare = _WORDS.sub("", call.id.replace(call.name, "") if call.name else call.id).strip(_MARKS)
    return bool(bare) and not (bare.isdigit() and len(bare) <= MOST_DIGITS)
