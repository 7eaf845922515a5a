"""Ids of calls as providers make them: most are unique, some only count the calls of one message."""

import re
from collections import Counter
from collections.abc import Sequence

from app.core.runs import ModelCall

_WORDS = re.compile(r"functions?|calls?|tools?|toolu|toolcall|shim|id")
_SEPARATORS = "_.:-#/"
MAX_COUNTER_DIGITS = 6
"""A longer number is not a counter."""


def have_unique_ids(calls: Sequence[ModelCall]) -> list[bool]:
    """For each call, whether its id identifies it across messages."""
    counts = Counter((call.id, call.sub_index) for call in calls)
    return [counts[call.id, call.sub_index] == 1 and _is_unique(call) for call in calls]


def _is_unique(call: ModelCall) -> bool:
    if not call.id:
        return False
    bare = _WORDS.sub("", call.id.replace(call.name, "") if call.name else call.id).strip(_SEPARATORS)
    return bool(bare) and not (bare.isdigit() and len(bare) <= MAX_COUNTER_DIGITS)
