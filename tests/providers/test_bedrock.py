"""Converse: definitions, calls and results, checked with botocore's model of the service."""

import base64
import copy
import io
import json
import re
import struct
from binascii import crc32
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.awsrequest import AWSRequest, AWSResponse  # type: ignore[import-untyped]
from botocore.model import ListShape, ServiceModel, Shape, StringShape, StructureShape  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from hypothesis import given

from app.core.runs import (
    Failure,
    Json,
    Media,
    ModelCall,
    Reply,
    SearchResult,
    Text,
    ToolOffer,
    ToolReference,
    Unreadable,
)
from app.providers.bedrock import dialect
from app.providers.dialects import Choice, ExportOptions
from tests.providers.arbitrary import UNHURRIED, messages, require_an_answer
from tests.providers.neutral import PIXEL, WEATHER, offers_of
from tests.providers.recorded import options_of, recorded

CACHE_POINT = {"cachePoint": {"type": "default"}}
ASKED = [{"role": "user", "content": [{"text": "x"}]}]


def offer(name: str, description: str = "Does something.", **more: Any) -> ToolOffer:
    return ToolOffer(**{"name": name, "description": description, "schema": WEATHER} | more)


def options(**asked: Any) -> ExportOptions:
    return ExportOptions(quirks=dialect.quirks, **asked)


def reply(*parts: Any, error: Failure | None = None, **call: Any) -> Reply:
    return Reply(call=ModelCall(**{"id": "tooluse_1", "name": "t"} | call), parts=parts, error=error)


def bytes_in(value: Any) -> Any:
    """With bytes where the wire has base64, as botocore takes them."""
    if isinstance(value, list):
        return [bytes_in(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64decode(inner) if name == "bytes" and isinstance(inner, str) else bytes_in(inner)
        for name, inner in value.items()
    }


@cache
def session() -> Any:
    """One for all tests: it reads the models of the services, which takes a while."""
    return botocore.session.Session()


@pytest.fixture(scope="module")
def service() -> ServiceModel:
    return session().get_service_model("bedrock-runtime")


def require_shape(service: ServiceModel, name: str, value: Any) -> None:
    """A value as the service's model wants it; of that, botocore itself checks no enums and no patterns."""
    shape = service.shape_for(name)
    report = ParamValidator().validate(bytes_in(value), shape)
    assert not report.has_errors(), report.generate_report()
    _require_words(shape, value)


def _require_words(shape: Shape, value: Any) -> None:
    if isinstance(shape, StructureShape) and not shape.is_document_type:
        for name, inner in value.items():
            _require_words(shape.members[name], inner)
    elif isinstance(shape, ListShape):
        for inner in value:
            _require_words(shape.member, inner)
    elif isinstance(shape, StringShape):
        assert not shape.enum or value in shape.enum, f"{value!r} is none of {shape.enum}"
        assert re.fullmatch(shape.metadata.get("pattern", ".*"), value, re.DOTALL)
        assert shape.metadata.get("min", 0) <= len(value) <= shape.metadata.get("max", len(value))


class Body(io.BytesIO):
    """The body of a response as botocore reads one."""

    def stream(self, *args: Any, **options: Any) -> Iterator[bytes]:
        yield self.getvalue()


def send(answer: bytes, operation: str = "converse", **request: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The body botocore sends, and what it reads from an answer."""
    sent: list[dict[str, Any]] = []

    def respond(request: AWSRequest, **more: Any) -> AWSResponse:
        sent.append(json.loads(request.body))
        return AWSResponse(request.url, 200, {"x-amzn-requestid": "request-1"}, Body(answer))

    client = session().create_client(
        "bedrock-runtime", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.meta.events.register("before-send.bedrock-runtime.*", respond)
    read = getattr(client, operation)(modelId="m", **bytes_in({"messages": ASKED} | request))
    if "stream" in read:
        read = {"stream": list(read["stream"])}
    client.close()
    return sent[0], read


def said(*content: dict[str, Any], reason: str = "tool_use") -> dict[str, Any]:
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    message = {"role": "assistant", "content": list(content)}
    return {"output": {"message": message}, "stopReason": reason, "usage": usage, "metrics": {"latencyMs": 1}}


OK = json.dumps(said({"text": "ok"}, reason="end_turn")).encode()


@recorded("definition", "bedrock")
def test_tools_are_offered_as_recorded_and_as_botocore_sends_them(case: dict[str, Any], service: ServiceModel) -> None:
    exported = dialect.export_tools(offers_of(case["input"]["tools"]), options_of(case, dialect))
    assert exported.tools == case["expected"]
    assert exported.warnings == []
    require_shape(service, "ToolConfiguration", {"tools": exported.tools})
    body, _ = send(OK, toolConfig={"tools": exported.tools})
    assert body["toolConfig"]["tools"] == exported.tools


@pytest.mark.parametrize(
    ("made", "described"),
    [
        (offer("ping", ""), "ping"),
        (offer("ping", "  ", title="Ping it"), "Ping it"),
        (offer("ping", "Pings."), "Pings."),
    ],
)
def test_a_description_is_never_empty(made: ToolOffer, described: str, service: ServiceModel) -> None:
    tools = dialect.export_tools([made], options()).tools
    assert tools[0]["toolSpec"]["description"] == described
    require_shape(service, "ToolConfiguration", {"tools": tools})


def test_the_cache_is_marked_by_a_point_after_the_last_tool(service: ServiceModel) -> None:
    tools = dialect.export_tools([offer("one"), offer("two")], options(cache="ephemeral")).tools
    assert tools[2:] == [CACHE_POINT]
    tools = dialect.export_tools([offer("one")], options(cache="1h")).tools
    assert tools[1:] == [{"cachePoint": {"type": "default", "ttl": "1h"}}]
    require_shape(service, "ToolConfiguration", {"tools": tools})
    assert dialect.export_tools([], options(cache="1h")).tools == []


def test_strict_is_only_for_those_who_ask_and_never_changes_what_it_cannot_say(service: ServiceModel) -> None:
    free = {"type": "object", "properties": {"map": {"type": "object"}}}
    offers = [offer("get_weather"), offer("free", schema=free)]
    assert not any("strict" in tool["toolSpec"] for tool in dialect.export_tools(offers, options()).tools)
    exported = dialect.export_tools(offers, options(strict="on"))
    closed, left = (tool["toolSpec"] for tool in exported.tools)
    assert (closed["strict"], closed["inputSchema"]["json"]["additionalProperties"]) == (True, False)
    assert (left.get("strict"), left["inputSchema"]["json"]) == (None, free)
    assert exported.warnings == ["free is not strict: an object in it takes properties of any name."]
    require_shape(service, "ToolConfiguration", {"tools": exported.tools})


def test_what_bedrock_does_not_know_is_said() -> None:
    asked = options(defers=lambda name: True, namespace=("n", "d"), is_native=True)
    assert len(dialect.export_tools([offer("one")], asked).warnings) == 3


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(), None),
        (Choice(mode="auto", parallel=True), {"auto": {}}),
        (Choice(mode="required"), {"any": {}}),
        (Choice(mode="tool", name="one"), {"tool": {"name": "one"}}),
    ],
)
def test_a_choice_stands_beside_the_tools(choice: Choice, said: Any, service: ServiceModel) -> None:
    warnings: list[str] = []
    tools = dialect.export_tools([offer("one"), offer("two")], options()).tools
    request = dialect.fill_request(tools, choice, dialect.quirks, warnings)
    assert request == {"toolConfig": {"tools": tools} | ({"toolChoice": said} if said else {})}
    assert warnings == []
    require_shape(service, "ToolConfiguration", request["toolConfig"])
    body, _ = send(OK, **request)
    assert body["toolConfig"] == request["toolConfig"]


@pytest.mark.parametrize(
    ("choice", "names", "warning"),
    [
        (Choice(mode="none"), None, "cannot forbid tool calls"),
        (Choice(allowed=("two",)), ["two"], "no list of allowed tools"),
        (Choice(allowed=("three",)), None, "no list of allowed tools"),
        (Choice(parallel=False), ["one", "two"], "cannot be disabled"),
    ],
)
def test_what_cannot_be_chosen_is_said(choice: Choice, names: list[str] | None, warning: str) -> None:
    warnings: list[str] = []
    tools = dialect.export_tools([offer("one"), offer("two")], options(cache="ephemeral")).tools
    request = dialect.fill_request(tools, choice, dialect.quirks, warnings)
    kept = request["toolConfig"]["tools"] if request else []
    assert [tool["toolSpec"]["name"] for tool in kept if "toolSpec" in tool] == (names or [])
    assert kept[-1:] == ([CACHE_POINT] if names else [])
    assert len(warnings) == 1
    assert warning in warnings[0]


def test_without_tools_there_is_no_configuration_and_chosen_names_are_made_legal() -> None:
    assert dialect.fill_request([], Choice(mode="required"), dialect.quirks, []) == {}
    tools = dialect.export_tools([offer("a.b")], options()).tools
    config = dialect.fill_request(tools, Choice(mode="tool", name="a.b"), dialect.quirks, [])["toolConfig"]
    assert config["toolChoice"]["tool"]["name"] == tools[0]["toolSpec"]["name"]


CONTENT: list[dict[str, Any]] = [
    {"text": "Let me "},
    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
    {"text": "see."},
    {"toolUse": {"toolUseId": "tooluse_0", "name": "web", "input": {}, "type": "server_tool_use"}},
    {"toolUse": {"toolUseId": "tooluse_1", "name": "get_weather", "input": {"location": "Oslo"}}},
    {"toolUse": {"toolUseId": "tooluse_2", "name": "unknown", "input": {}}},
]
CALLS = (
    ModelCall(id="tooluse_1", name="get_weather", arguments={"location": "Oslo"}),
    ModelCall(id="tooluse_2", name="unknown", arguments={}),
)


def read(message: Any) -> Any:
    return dialect.read_calls(message, lambda name: None)


def test_a_response_a_message_and_blocks_are_read_alike() -> None:
    before = copy.deepcopy(CONTENT)
    whole = read(said(*CONTENT))
    assert (whole.calls, whole.text, whole.is_response) == (CALLS, "Let me see.", True)
    assert read({"role": "assistant", "content": CONTENT}).calls == CALLS
    assert read(CONTENT).calls == CALLS
    assert read(CONTENT[4]).calls == CALLS[:1]
    assert read([block["toolUse"] for block in CONTENT[4:]]).calls == CALLS
    assert before == CONTENT


def test_what_botocore_reads_is_read_here_too() -> None:
    _, response = send(json.dumps(said(*CONTENT)).encode())
    reading = read(json.loads(json.dumps(response)))
    assert (reading.calls, reading.text, reading.message_id) == (CALLS, "Let me see.", "request-1")


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "malformed_tool_use"])
def test_a_call_at_the_end_of_a_message_that_was_cut_is_not_run(reason: str) -> None:
    first, last = read(said(*CONTENT, reason=reason)).calls
    assert first == CALLS[0]
    assert (last.arguments, last.raw_arguments) == (None, "{}")


def events(*pieces: str, ends: bool = True, reason: str = "tool_use") -> list[dict[str, Any]]:
    use = {"toolUse": {"toolUseId": "tooluse_1", "name": "t"}}
    return [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"delta": {"text": "Let me"}, "contentBlockIndex": 0}},
        {"contentBlockDelta": {"delta": {"text": " see."}, "contentBlockIndex": 0}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"contentBlockStart": {"start": use, "contentBlockIndex": 1}},
        *({"contentBlockDelta": {"delta": {"toolUse": {"input": one}}, "contentBlockIndex": 1}} for one in pieces),
        *([{"contentBlockStop": {"contentBlockIndex": 1}}] if ends else []),
        {"messageStop": {"stopReason": reason}},
    ]


def frame(event: dict[str, Any]) -> bytes:
    """An event as it comes over the wire: lengths, headers, payload and their checksums."""
    ((kind, payload),) = event.items()
    head = b""
    for name, value in ((":message-type", "event"), (":event-type", kind)):
        head += struct.pack("B", len(name)) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(head) + len(body), len(head))
    start = prelude + struct.pack(">I", crc32(prelude)) + head + body
    return start + struct.pack(">I", crc32(start))


@pytest.mark.parametrize(
    ("pieces", "arguments"), [(('{"a"', ": 1}"), {"a": 1}), ((), {}), (("",), {})], ids=["pieces", "none", "empty"]
)
def test_a_stream_is_the_message_it_builds(pieces: tuple[str, ...], arguments: dict[str, Any]) -> None:
    stream = events(*pieces)
    reading = read(stream)
    assert reading.calls == (ModelCall(id="tooluse_1", name="t", arguments=arguments),)
    assert reading.text == "Let me see."
    _, response = send(b"".join(map(frame, stream)), "converse_stream")
    assert read(response["stream"]) == reading


@pytest.mark.parametrize(
    ("stream", "wrong"),
    [
        (events('{"a": b}'), "not JSON"),
        (events('{"a": 1', ends=False), "before the arguments were complete"),
        (events('{"a": 1}', reason="max_tokens"), "before the arguments were complete"),
    ],
)
def test_a_streamed_call_that_is_broken_or_cut_says_so(stream: list[dict[str, Any]], wrong: str) -> None:
    (call,) = read(stream).calls
    assert wrong in call.arguments_error
    assert call.raw_arguments.startswith('{"a": ')


def test_a_streamed_call_that_the_provider_runs_is_not_ours() -> None:
    stream = events("{}")
    stream[4]["contentBlockStart"]["start"]["toolUse"]["type"] = "server_tool_use"
    assert read(stream).calls == ()


def test_a_message_without_calls_has_none() -> None:
    assert read(said({"text": "hi"})).text == "hi"
    assert read([]).calls == ()


@pytest.mark.parametrize(
    "message",
    [
        None,
        "hello",
        {},
        {"message": "Too many requests"},
        {"role": "user", "content": [{"toolResult": {}}]},
        ["x"],
        [{"toolUse": {"name": "t", "input": {}}}],
        [{"toolUse": {"toolUseId": "tooluse_1"}}],
    ],
)
def test_what_is_no_message_is_refused_in_a_sentence(message: Any) -> None:
    with pytest.raises(Unreadable, match=r"\.$"):
        read(message)


@UNHURRIED
@given(
    messages("output", "message", "content", "toolUse", "toolUseId", "name", "input", "stopReason", "max_tokens")
    | messages(
        "contentBlockStart", "contentBlockDelta", "contentBlockIndex", "start", "delta", "toolUse", "text", "input"
    )
)
def test_whatever_comes_is_read_or_refused(message: Any) -> None:
    require_an_answer(dialect, message)


def results_of(service: ServiceModel, *replies: Reply) -> list[dict[str, Any]]:
    """The results of the one message, which the service's model must know and botocore send as they are."""
    (message,) = dialect.write_results(replies)
    require_shape(service, "Message", message)
    body, _ = send(OK, messages=[message])
    assert body["messages"] == [message]
    assert message["role"] == "user"
    return [block["toolResult"] for block in message["content"]]


def test_all_results_are_blocks_of_one_message_with_their_status(service: ServiceModel) -> None:
    failed = reply(Text("half"), error=Failure("ExitCode:1", "it broke"), id="tooluse_2")
    assert results_of(service, reply(Text("12 C")), failed, reply(id="tooluse_3")) == [
        {"toolUseId": "tooluse_1", "content": [{"text": "12 C"}], "status": "success"},
        {
            "toolUseId": "tooluse_2",
            "content": [{"text": "[ERROR:ExitCode:1] it broke"}, {"text": "half"}],
            "status": "error",
        },
        {"toolUseId": "tooluse_3", "content": [{"text": "(no output)"}], "status": "success"},
    ]
    assert dialect.write_results([]) == []


def test_each_part_has_its_block(service: ServiceModel, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Json({"a": 1}), {"json": {"a": 1}}),
        (Json([1, 2]), {"json": {"value": [1, 2]}}),
        (
            SearchResult(source="s", title="t", text="x"),
            {"searchResult": {"source": "s", "title": "t", "content": [{"text": "x"}]}},
        ),
        (ToolReference("grep"), {"text": "grep"}),
        (Media(mime="image/jpeg", data=PIXEL), {"image": {"format": "jpeg", "source": {"bytes": PIXEL}}}),
        (Media(mime="video/mp4", data=PIXEL), {"video": {"format": "mp4", "source": {"bytes": PIXEL}}}),
        (
            Media(mime="application/pdf", data=PIXEL, name="../a__b.pdf"),
            {"document": {"format": "pdf", "name": "a-b-pdf", "source": {"bytes": PIXEL}}},
        ),
        (
            Media(mime="text/x-python", data=PIXEL),
            {"document": {"format": "txt", "name": "document", "source": {"bytes": PIXEL}}},
        ),
        (Media(mime="image/png", url="https://x/a.png"), {"text": "[image (image/png), available at https://x/a.png]"}),
        (Media(mime="application/zip", data=PIXEL, name="a.zip"), {"text": "[file a.zip (application/zip)]"}),
        (Media(mime="image/png", data=""), {"text": "[image (image/png)]"}),
    ]
    for part, block in cases:
        with subtests.test(part=part, block=block):
            (result,) = results_of(service, reply(part))
            assert result["content"] == [block]


def test_documents_of_one_name_are_told_apart_in_the_whole_message(service: ServiceModel) -> None:
    pdf = Media(mime="application/pdf", data=PIXEL, name="a")
    first, second = results_of(service, reply(pdf, pdf), reply(pdf, id="tooluse_2"))
    names = [block["document"]["name"] for block in [*first["content"], *second["content"]]]
    assert names == ["a", "a (2)", "a (3)"]


def test_a_long_name_of_a_document_is_cut(service: ServiceModel) -> None:
    (result,) = results_of(service, reply(Media(mime="text/csv", data=PIXEL, name="ä b  c" + "x" * 300)))
    name = result["content"][0]["document"]["name"]
    assert name.startswith("b cxxx")
    assert len(name) <= 200
