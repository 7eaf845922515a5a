"""Tracebacks as a model reads them: of its own code, without what runs it."""

import traceback

MOST_SHOWN = 100_000
OURS = [__file__]
"""How the names of files begin that nobody wants to hear of."""


def failed(failure: BaseException) -> dict[str, str]:
    told = traceback.TracebackException(type(failure), failure, failure.__traceback__, compact=True)
    forget_ours(told)
    text = "".join(told.format())
    *_, summary = [line for line in told.format_exception_only() if not line.startswith(" ")]
    return {"summary": shortened(summary.strip()), "text": shortened(text)}


def forget_ours(told: traceback.TracebackException | None) -> None:
    """Leave out what leads to a cell and the frames of our own, also in what led to the failure and in its parts."""
    if told is None:
        return
    places = [frame.filename for frame in told.stack]
    first = next((number for number, place in enumerate(places) if place.startswith("<cell ")), 0)
    told.stack[:] = [frame for frame in told.stack[first:] if not frame.filename.startswith(tuple(OURS))]
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        forget_ours(other)


def shortened(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}… {len(text) - MOST_SHOWN} more characters"
