"""Values that no provider sends, and values that are almost what one sends."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from app.core.runs import ParsedMessage, Unreadable
from app.providers.dialects import Dialect

UNHURRIED = settings(deadline=None)
"""How long an example takes is not what it is about."""
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)


def messages(*words: str) -> st.SearchStrategy[Any]:
    """Any JSON, most of it with the keys and values that mean something in a dialect."""
    known = st.sampled_from(words)
    return st.recursive(
        SCALARS | known,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(known | st.text(max_size=3), inner, max_size=5),
        max_leaves=20,
    )


def require_an_answer(dialect: Dialect, message: Any) -> None:
    """Whatever it is, it is read or refused."""
    try:
        reading = dialect.read_calls(message, lambda name: None)
    except Unreadable:
        return
    assert isinstance(reading, ParsedMessage)
    for call in reading.calls:
        assert (call.arguments is None) == (call.arguments_error is not None)
