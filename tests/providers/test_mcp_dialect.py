"""MCP: definitions, calls and results, checked with the protocol's own types in all its versions."""

from typing import Any

import pytest
from hypothesis import given
from mcp import types
from mcp.types import methods
from mcp.types.jsonrpc import JSONRPCResponse
from mcp.types.version import SUPPORTED_PROTOCOL_VERSIONS

from app.core.errors import McpFailed
from app.core.runs import Failure, Json, Media, ModelCall, Reply, SearchResult, Text, ToolOffer, Unreadable
from app.mcp.client import results
from app.providers.dialects import Choice, ExportOptions
from app.providers.mcp import dialect
from tests.providers.arbitrary import UNHURRIED, messages, require_an_answer
from tests.providers.neutral import PIXEL, WEATHER

TEXT_BLOCK = {"type": "text", "text": "12 C"}


def offer(name: str, **more: Any) -> ToolOffer:
    return ToolOffer(**{"name": name, "description": f"Does {name}.", "schema": WEATHER} | more)


def options(**asked: Any) -> ExportOptions:
    return ExportOptions(quirks=dialect.quirks, **asked)


def reply(*parts: Any, error: Failure | None = None, **call: Any) -> Reply:
    return Reply(call=ModelCall(**{"id": None, "name": "t"} | call), parts=parts, error=error)


def result_of(*parts: Any, error: Failure | None = None) -> dict[str, Any]:
    """The result of one call, which every version of the protocol must take."""
    (result,) = dialect.write_results([reply(*parts, error=error)])
    for version in SUPPORTED_PROTOCOL_VERSIONS:
        methods.validate_server_result("tools/call", version, result)
    typed = types.CallToolResult.model_validate(result)
    assert typed.model_dump(mode="json", by_alias=True, exclude_none=True) == result
    return result


def test_tools_are_listed_with_all_that_is_known_of_them() -> None:
    output = {"type": "object", "properties": {"degrees": {"type": "number"}}}
    hints = {"readOnlyHint": True, "odd": 1, "title": None}
    full = offer("get_weather", title="Weather", annotations=hints, output_schema=output)
    exported = dialect.export_tools([full, offer("fs.read/file"), offer("ping", schema={})], options())
    weather, read_file, ping = exported.tools
    assert weather == {
        "name": "get_weather",
        "title": "Weather",
        "description": "Does get_weather.",
        "inputSchema": WEATHER,
        "annotations": {"readOnlyHint": True},
        "outputSchema": output,
    }
    assert read_file["name"].startswith("fs_read_file_")
    assert ping == {
        "name": "ping",
        "description": "Does ping.",
        "inputSchema": {"type": "object", "properties": {}},
    }
    assert exported.warnings == [
        f"fs.read/file: renamed to {read_file['name']}, because the provider does not accept the name."
    ]
    listed = dialect.fill_request(exported.tools, Choice(), dialect.quirks, [])
    for version in SUPPORTED_PROTOCOL_VERSIONS:
        told = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} | listed
        methods.validate_server_result("tools/list", version, told)
    typed = types.ListToolsResult.model_validate(listed)
    dumped = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in typed.tools]
    assert dumped == exported.tools


def test_names_with_dots_and_of_128_characters_stay_as_they_are() -> None:
    names = ["fs.read", "x" * 128]
    assert [tool["name"] for tool in dialect.export_tools([offer(name) for name in names], options()).tools] == names


def test_what_mcp_does_not_know_is_said() -> None:
    asked = options(strict="on", cache="1h", defers=lambda name: True, namespace=("n", "d"), is_native=True)
    exported = dialect.export_tools([offer("t", output_schema={"type": "array"})], asked)
    assert "outputSchema" not in exported.tools[0]
    assert len(exported.warnings) == 6
    warnings: list[str] = []
    choice = Choice(mode="required", parallel=False, allowed=("u",))
    tools = dialect.export_tools([offer("t"), offer("u")], options()).tools
    assert dialect.fill_request(tools, choice, dialect.quirks, warnings) == {"tools": tools[1:]}
    assert len(warnings) == 3


def request(request_id: Any, name: str = "t", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"name": name} | params}


def read(message: Any) -> Any:
    return dialect.read_calls(message, lambda name: None)


@pytest.mark.parametrize(("request_id", "shown"), [(7, "7"), ("7", "7"), (0, "0"), (1.5, "1.5")])
def test_a_request_is_answered_under_the_very_id_it_came_with(request_id: Any, shown: str) -> None:
    (call,) = read(request(request_id, arguments={"location": "Oslo"}, _meta={"progressToken": 1})).calls
    assert call == ModelCall(id=shown, name="t", arguments={"location": "Oslo"}, caller={"jsonrpc_id": request_id})
    (answer,) = dialect.write_results([Reply(call=call, parts=(Text("12 C"),))])
    assert (answer["id"], type(answer["id"])) == (request_id, type(request_id))
    assert answer["jsonrpc"] == "2.0"
    assert answer["result"] == result_of(Text("12 C"))


def test_the_protocols_own_types_take_the_answer_and_give_the_request() -> None:
    params = types.CallToolRequestParams(name="t", arguments={"a": 1})
    asked = types.CallToolRequest(params=params).model_dump(mode="json", by_alias=True, exclude_none=True)
    (call,) = read({"jsonrpc": "2.0", "id": 3} | asked).calls
    assert call.arguments == {"a": 1}
    (answer,) = dialect.write_results([Reply(call=call, parts=(Text("done"),))])
    assert JSONRPCResponse.model_validate(answer).id == 3


def test_bare_params_are_answered_by_the_result_alone() -> None:
    (call,) = read({"name": "t"}).calls
    assert call == ModelCall(id=None, name="t", arguments={})
    assert dialect.write_results([Reply(call=call, parts=(Text("12 C"),))]) == [
        {"resultType": "complete", "content": [TEXT_BLOCK], "isError": False}
    ]


def test_a_list_is_read_in_its_order_and_what_is_no_call_is_passed_over() -> None:
    others = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ]
    reading = read([request(1, "a"), *others, {"name": "b", "arguments": {}}, request(2, "c", arguments=[1])])
    assert [(call.id, call.name) for call in reading.calls] == [("1", "a"), (None, "b"), ("2", "c")]
    assert reading.calls[2].arguments_error == "The arguments must be an object, not a list."
    assert read(others[1]).calls == ()
    assert read([]).calls == ()


@pytest.mark.parametrize(
    "message", [None, "hello", {}, {"method": "tools/call"}, request(1) | {"params": {}}, [request(1), 5], {"name": 5}]
)
def test_what_is_no_message_is_refused_in_a_sentence(message: Any) -> None:
    with pytest.raises(Unreadable, match=r"\.$"):
        read(message)


@UNHURRIED
@given(messages("jsonrpc", "2.0", "id", "method", "tools/call", "params", "name", "arguments"))
def test_whatever_comes_is_read_or_refused(message: Any) -> None:
    require_an_answer(dialect, message)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_each_part_has_its_block(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[Any, ...], list[dict[str, Any]]]] = [
        ((), [text("")]),
        ((Text("a"), Text("b")), [text("a"), text("b")]),
        ((Json([1]),), [text("[1]")]),
        ((SearchResult(source="s", title="t", text="x"),), [text("t (s)\nx")]),
        ((Media(mime="image/png", data=PIXEL),), [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]),
        ((Media(mime="audio/wav", data=PIXEL),), [{"type": "audio", "data": PIXEL, "mimeType": "audio/wav"}]),
        (
            (Text("see"), Media(mime="application/pdf", data=PIXEL, name="a b.pdf")),
            [
                text("see"),
                {
                    "type": "resource",
                    "resource": {
                        "uri": "toolcrib:///attachments/1/a%20b.pdf",
                        "mimeType": "application/pdf",
                        "blob": PIXEL,
                    },
                },
            ],
        ),
        (
            (Media(mime="text/csv", data=PIXEL, url="https://x/a.csv"),),
            [{"type": "resource", "resource": {"uri": "https://x/a.csv", "mimeType": "text/csv", "blob": PIXEL}}],
        ),
        (
            (Media(mime="image/png", url="https://x/a.png"),),
            [{"type": "resource_link", "uri": "https://x/a.png", "name": "https://x/a.png", "mimeType": "image/png"}],
        ),
        ((Media(mime="image/png", name="lost.png"),), [text("[image lost.png (image/png)]")]),
    ]
    for parts, content in cases:
        with subtests.test(parts=parts, content=content):
            assert result_of(*parts) == {"resultType": "complete", "content": content, "isError": False}


def test_an_object_is_structured_content_and_said_only_where_no_text_says_it() -> None:
    alone = result_of(Json({"degrees": 12}))
    assert (alone["content"], alone["structuredContent"]) == ([text('{"degrees": 12}')], {"degrees": 12})
    beside = result_of(Text("12 C"), Json({"degrees": 12}))
    assert (beside["content"], beside["structuredContent"]) == ([TEXT_BLOCK], {"degrees": 12})


def test_an_error_comes_after_what_the_tool_gave_and_a_servers_own_is_not_said_twice() -> None:
    failed = result_of(Text("half"), error=Failure("Timeout", "It took too long."))
    assert (failed["content"], failed["isError"]) == ([text("half"), text("Timeout: It took too long.")], True)
    assert result_of(error=Failure("Timeout", "late"))["content"] == [text("Timeout: late")]
    own = result_of(Text("no such file"), error=Failure(McpFailed.code, "no such file"))
    assert (own["content"], own["isError"]) == ([text("no such file")], True)
    assert result_of(error=Failure(McpFailed.code, "gone"))["content"] == [text(f"{McpFailed.code}: gone")]


def test_the_service_reads_its_own_results_without_a_loss() -> None:
    image = Media(mime="image/png", data=PIXEL)
    read_back = results.to_result(result_of(Text("see"), Json({"n": 1}), image))
    assert (read_back.output, read_back.structured) == ("see", {"n": 1})
    assert [attachment.url for attachment in read_back.attachments] == [f"data:image/png;base64,{PIXEL}"]
