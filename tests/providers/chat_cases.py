"""What the tests of the Chat Completions family share: the recorded cases, any JSON, and servers that only listen."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import httpx2
from hypothesis import strategies as st

from app.core.runs import ParsedMessage, ToolOffer, Unreadable
from app.providers.dialects import Dialect, ExportOptions, Strictness
from tests.providers.neutral import WEATHER, knowing, offers_of, replies_of

SCENARIOS = Path(__file__).parent.parent / "scenarios" / "providers.json"
OFFER = ToolOffer(name="get_weather", description="Current weather for a place.", schema=WEATHER)
QUIET = ToolOffer(name="list_sessions", description="List live sessions.", schema={"type": "object", "properties": {}})
FREE = ToolOffer(
    name="apply_patch",
    description="Change files by a patch.",
    schema={"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    takes="input",
    grammar='start: "x"+',
)
STRICT: dict[bool | None, Strictness] = {True: "on", False: "off", None: "auto"}
PATCH = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n"
WORDS = (
    *("choices", "message", "messages", "delta", "index", "id", "role", "content", "tool_calls", "function", "type"),
    *("name", "arguments", "custom", "input", "finish_reason", "function_call", "tool_plan", "text", "data", "done"),
    *("assistant", "tool_use", "tool-call-start", "message-start", "multi_tool_use.parallel", "tool_uses", "null"),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS)
ANY_JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=25,
)


@st.composite
def spoiled(draw: st.DrawFn, *samples: Any) -> Any:
    """Something that is almost right: one place in it holds any JSON."""
    sample = deepcopy(draw(st.sampled_from(samples)))
    *way, last = draw(st.sampled_from(list(_places(sample))))
    holder = sample
    for step in way:
        holder = holder[step]
    holder[last] = draw(ANY_JSON)
    return sample


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _places(inner, (*way, step))


def cases(*formats: str, kind: str | None = None) -> list[Any]:
    """The recorded cases of some formats."""
    found = json.loads(SCENARIOS.read_text())["cases"]
    return [case for case in found if case["format"] in formats and kind in (None, case["kind"])]


def made_of(dialect: Dialect, case: dict[str, Any]) -> list[Any]:
    """What becomes of a recorded case."""
    match case["kind"]:
        case "definition":
            strict: Strictness = STRICT[case["input"].get("options", {}).get("strict")]
            options = ExportOptions(strict=strict, model=case["input"].get("model"), quirks=dialect.quirks)
            return dialect.export_tools(offers_of(case["input"]["tools"]), options).tools
        case "calls":
            known = knowing(*offers_of(case.get("tools", [])))
            return [call.view() for call in dialect.read_calls(case["input"], known).calls]
        case _:
            return dialect.write_results(replies_of(case["input"]["results"]))


def read(dialect: Dialect, message: Any, *offers: ToolOffer) -> ParsedMessage:
    return dialect.read_calls(message, knowing(*offers))


def require_readable_or_said(dialect: Dialect, message: Any) -> None:
    """Any JSON is read, or a sentence says why not; and it is left as it was."""
    before = repr(message)
    refused = None
    reading = ParsedMessage()
    try:
        reading = read(dialect, message, OFFER)
    except Unreadable as sentence:
        refused = str(sentence)
    assert refused is None or refused.endswith(".")
    assert all(isinstance(call.name, str) for call in reading.calls)
    assert repr(message) == before


class Listener:
    """A server that keeps what it was sent and always gives the same answer: an object, or the lines of a stream."""

    def __init__(self, answer: Any, *, is_stream: bool = False, lines: Callable[[Any], str] | None = None) -> None:
        self.bodies: list[Any] = []
        write = lines or (lambda event: f"data: {json.dumps(event)}\n\n")
        kind = "text/event-stream" if lines is None else "application/x-ndjson"
        self._content = "".join(map(write, answer)) if is_stream else json.dumps(answer)
        self._headers = {"content-type": kind if is_stream else "application/json"}

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self._old))

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._old)

    def new_client(self) -> httpx2.Client:
        """For packages that have moved on to httpx2."""
        return httpx2.Client(transport=httpx2.MockTransport(self._new))

    def _old(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        return httpx.Response(200, content=self._content, headers=self._headers)

    def _new(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        return httpx2.Response(200, content=self._content, headers=self._headers)
