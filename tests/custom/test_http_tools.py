"""Tools that are one HTTP request, against a real server."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from app.core.errors import HttpFailed, InvalidArgs, ToolUnavailable
from app.core.ports import PathScope
from app.core.results import Attachment, Result
from app.core.rules import Need
from app.core.tools import Effect, Lane
from app.custom.http_tools import make
from tests.support.http_servers import Peer, Seen, reply, serving
from tests.support.outbound_context import context, defined


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving() as peer:
        yield peer


def of(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


TEXT = {"type": "string"}


async def run(args: dict[str, Any], trace: str | None = None, **definition: Any) -> Result:
    tool = make(defined(**definition), None)
    return await tool.run(tool.parse(args), context(trace))


async def arrived(peer: Peer, path: str, args: dict[str, Any], **definition: Any) -> Seen:
    """The request a call becomes."""
    peer.otherwise = reply(b"ok")
    definition.setdefault("parameters", of(**{name: {} for name in args}))
    await run(args, url=peer.url(path, "api.example"), **definition)
    return peer.seen[-1]


def test_a_definition_becomes_a_tool() -> None:
    parameters = of("city", city=TEXT)
    tool = make(defined(name="get_weather", url="https://API.example:8443/{city}", parameters=parameters), "anna")

    assert (tool.source, tool.lane, tool.permission, tool.owner) == ("http", Lane.NONE, "network", "anna")
    assert (tool.title, tool.schema, tool.effect, tool.timeout) == ("Get weather", parameters, Effect.READ, 35)
    assert tool.needs({"city": "x"}, cast(PathScope, None)) == [Need("network", "api.example")]


@pytest.mark.parametrize(
    ("method", "effect", "becomes"),
    [
        ("GET", None, "read"),
        ("HEAD", None, "read"),
        ("POST", None, "write"),
        ("DELETE", None, "write"),
        ("POST", "read", "read"),
        ("GET", "write", "write"),
    ],
)
def test_the_effect_is_the_methods_unless_said(method: str, effect: str | None, becomes: str) -> None:
    assert make(defined(method=method, effect=effect), None).effect == Effect(becomes)


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("Berlin", "/weather/Berlin/now"),
        ("a/b", "/weather/a%2Fb/now"),
        ("ä ö?#%", "/weather/%C3%A4%20%C3%B6%3F%23%25/now"),
        ("...", "/weather/.../now"),
        (7, "/weather/7/now"),
        (True, "/weather/true/now"),
        (["a", "b/c"], "/weather/a%2Cb%2Fc/now"),
    ],
)
async def test_an_argument_in_the_path_stays_in_its_segment(peer: Peer, value: Any, target: str) -> None:
    assert (await arrived(peer, "/weather/{city}/now", {"city": value})).target == target


@pytest.mark.parametrize("value", ["", ".", "..", "../admin", "a/../../b", "..\\x", None, {"a": 1}])
async def test_an_argument_that_would_leave_its_segment_is_refused(peer: Peer, value: Any) -> None:
    with pytest.raises(InvalidArgs, match="city"):
        await arrived(peer, "/weather/{city}", {"city": value})

    assert peer.seen == []


async def test_arguments_of_a_get_are_its_query(peer: Peer) -> None:
    args = {"q": "a&b=c", "tags": ["x", "y"], "deep": True, "none": None, "n": 1.5, "more": {"a": [1]}}

    seen = await arrived(peer, "/?fixed=1", args, query={"v": "2"})

    assert seen.query == [
        ("fixed", "1"),
        ("v", "2"),
        ("q", "a&b=c"),
        ("tags", "x"),
        ("tags", "y"),
        ("deep", "true"),
        ("n", "1.5"),
        ("more", '{"a":[1]}'),
    ]
    assert seen.body == b""


@pytest.mark.parametrize(
    ("style", "value", "query"),
    [
        ("comma", ["a", "b"], [("f", "a,b")]),
        ("space", ["a", "b"], [("f", "a b")]),
        ("pipe", ["a", "b"], [("f", "a|b")]),
        ("comma", {"a": 1, "b": 2}, [("f", "a,1,b,2")]),
        ("deep", {"a": {"gt": 1}, "b": [2, 3]}, [("f[a][gt]", "1"), ("f[b][]", "2"), ("f[b][]", "3")]),
        ("members", {"a": 1, "b": [2, 3]}, [("a", "1"), ("b", "2"), ("b", "3")]),
        ("json", ["a", 1], [("f", '["a",1]')]),
    ],
)
async def test_lists_and_objects_are_written_in_their_style(
    peer: Peer, style: str, value: Any, query: list[tuple[str, str]]
) -> None:
    places = {"filter": {"place": "query", "name": "f", "style": style}}

    assert (await arrived(peer, "/", {"filter": value}, places=places)).query == query


async def test_arguments_of_a_post_are_its_body(peer: Peer) -> None:
    args = {"id": "x", "n": 10**30, "none": None, "list": [{"a": True}], "dry": False, "key": "k"}
    places = {"dry": "query", "key": {"place": "header", "name": "X-Key"}}

    seen = await arrived(peer, "/items/{id}", args, method="POST", places=places)

    assert (seen.method, seen.target, seen.headers["x-key"]) == ("POST", "/items/x?dry=false", "k")
    assert seen.headers["content-type"] == "application/json"
    assert seen.body == b'{"n":1000000000000000000000000000000,"none":null,"list":[{"a":true}]}'


async def test_an_argument_can_be_the_whole_body(peer: Peer) -> None:
    places = {"data": "whole_body"}
    parameters = of(data={})

    seen = await arrived(peer, "/", {"data": [1, 2]}, method="PUT", places=places, parameters=parameters)
    assert seen.body == b"[1,2]"
    seen = await arrived(peer, "/", {}, method="PUT", places=places, parameters=parameters)
    assert (seen.body, seen.headers["content-length"], "content-type" in seen.headers) == (b"", "0", False)


async def test_a_body_can_be_a_form(peer: Peer) -> None:
    seen = await arrived(peer, "/", {"a": "x y", "b": [1, 2], "c": None}, method="POST", encoding="form")

    assert seen.headers["content-type"] == "application/x-www-form-urlencoded"
    assert seen.body == b"a=x%20y&b=1&b=2"


async def test_a_content_type_that_is_fixed_is_kept(peer: Peer) -> None:
    headers = {"content-type": "application/vnd.api+json"}

    seen = await arrived(peer, "/", {"a": 1}, method="PATCH", headers=headers)

    assert seen.headers["content-type"] == "application/vnd.api+json"


async def test_secrets_go_along_by_name_and_are_not_shown(peer: Peer) -> None:
    peer.pages["/"] = reply(b"ok")
    result = await run(
        {"q": "x"},
        url=peer.url("/", "api.example"),
        parameters=of(q=TEXT),
        headers={"X-Fixed": "1", "Authorization": {"secret": "LOGIN", "form": "basic"}},
        query={"key": {"secret": "TOKEN"}},
        cookies={"sid": {"secret": "TOKEN"}},
    )

    [seen] = peer.seen
    assert seen.headers["authorization"] == "Basic " + base64.b64encode(b"user:password").decode()
    assert (seen.headers["x-fixed"], seen.headers["cookie"]) == ("1", "sid=t0ken-value")
    assert seen.query == [("q", "x"), ("key", "t0ken-value")]
    assert result.metadata["url"] == peer.url("/?q=x", "api.example")


async def test_a_secret_nobody_set_makes_the_tool_unavailable(peer: Peer) -> None:
    with pytest.raises(ToolUnavailable, match="OTHER"):
        await run({}, url=peer.url(), headers={"X": {"secret": "OTHER"}})


@pytest.mark.parametrize("extra", [{"key": "mine"}, {"v": "3"}, {"f": {"key": "mine"}}])
async def test_no_argument_takes_the_place_of_what_is_fixed(peer: Peer, extra: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgs, match="fixed"):
        await run(
            extra,
            url=peer.url(),
            parameters=of(f={}),
            places={"f": {"place": "query", "style": "members"}},
            query={"key": {"secret": "TOKEN"}, "v": "2"},
        )

    assert peer.seen == []


async def test_a_line_break_in_a_header_is_the_models_mistake(peer: Peer) -> None:
    places = {"n": {"place": "header", "name": "X-Note"}}

    with pytest.raises(InvalidArgs, match="X-Note"):
        await run({"n": "a\r\nX: y"}, url=peer.url(), parameters=of(n=TEXT), places=places)

    assert peer.seen == []


async def test_the_trace_goes_along(peer: Peer) -> None:
    peer.pages["/"] = reply(b"ok")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    await run({}, trace, url=peer.url())

    assert peer.seen[0].headers["traceparent"] == trace


async def test_json_is_told_as_it_came_and_as_data(peer: Peer) -> None:
    body = b'{ "n": 12345678901234567890, "t": "\xc3\xa4" }'
    peer.pages["/"] = reply(body, "200 OK", "Content-Type: application/problem+json; charset=utf-8")

    assert await run({}, url=peer.url()) == Result(
        output=body.decode(),
        title=f"GET {peer.url()}",
        metadata={
            "status": 200,
            "url": peer.url(),
            "content_type": "application/problem+json; charset=utf-8",
            "bytes": len(body),
        },
        structured={"n": 12345678901234567890, "t": "ä"},
    )


@pytest.mark.parametrize("body", [b"{nope", b"[" * 100_000, b'"' + b"x" * 300_000 + b'"'])
async def test_json_that_is_none_or_too_much_is_told_as_text_only(peer: Peer, body: bytes) -> None:
    peer.pages["/"] = reply(body, "200 OK", "Content-Type: application/json")

    result = await run({}, url=peer.url())

    assert (result.output, result.structured) == (body.decode(), None)


@pytest.mark.parametrize(
    ("kind", "body", "output"),
    [
        ("text/plain; charset=iso-8859-1", b"\xe4", "ä"),
        ('text/plain; charset="UTF-16"', "ä".encode("utf-16"), "ä"),
        ("text/html", b"\xef\xbb\xbf<p>\xff", "<p>�"),
        ("text/plain; charset=punycode", b"abc", "abc"),
        ("text/plain; charset=hex", b"abc", "abc"),
        ("application/octet-stream", b"readable", "readable"),
        ("", b"readable", "readable"),
    ],
)
async def test_text_is_read_in_its_charset(peer: Peer, kind: str, body: bytes, output: str) -> None:
    peer.pages["/"] = reply(body, "200 OK", *([f"Content-Type: {kind}"] if kind else []))

    assert (await run({}, url=peer.url())).output == output


async def test_what_is_no_text_is_attached(peer: Peer) -> None:
    png = b"\x89PNG\r\n\x1a\n\0"
    peer.pages["/"] = reply(png, "200 OK", "Content-Type: image/png")

    result = await run({}, url=peer.url())

    assert result.output == "The response is 9 bytes of image/png, not text; it is attached."
    assert result.attachments == (Attachment("image/png", f"data:image/png;base64,{base64.b64encode(png).decode()}"),)


async def test_what_is_no_text_and_more_than_is_read_is_only_told(peer: Peer) -> None:
    peer.pages["/"] = reply(bytes(4 * 1024 * 1024 + 1), "200 OK", "Content-Type: application/zip")

    result = await run({}, url=peer.url())

    told = "The response is 4,194,304 bytes of application/zip, not text; it is too large to attach."
    assert result.output == told
    assert result.attachments == ()


async def test_an_answer_without_a_body_says_so(peer: Peer) -> None:
    peer.pages["/"] = b"HTTP/1.1 204 No Content\r\n\r\n"

    assert (await run({}, url=peer.url(), method="DELETE")).output == "204 No Content, with an empty body."


async def test_a_head_request_tells_the_headers(peer: Peer) -> None:
    peer.pages["/"] = b"HTTP/1.1 200 OK\r\nETag: x\r\nSet-Cookie: a=b\r\nContent-Length: 999\r\n\r\n"

    assert (await run({}, url=peer.url(), method="HEAD")).output == "etag: x\ncontent-length: 999"


async def test_an_answer_that_is_too_long_is_cut_and_says_so(peer: Peer) -> None:
    peer.pages["/"] = reply(b"x" * 5_000_000, "200 OK", "Content-Type: application/json")

    result = await run({}, url=peer.url())

    assert result.output.endswith("\n\n[The response was cut: only its first 4,194,304 bytes were read.]")
    assert (result.metadata["bytes"], result.metadata["cut"], result.structured) == (4_194_304, True, None)


@pytest.mark.parametrize(
    ("status", "is_retryable"),
    [
        ("304 Not Modified", False),
        ("400 Bad Request", False),
        ("404 Not Found", False),
        ("408 Request Timeout", True),
        ("429 Too Many Requests", True),
        ("500 Internal Server Error", True),
        ("503 Service Unavailable", True),
    ],
)
async def test_a_status_that_is_no_success_is_an_error_that_keeps_the_body(
    peer: Peer, status: str, is_retryable: bool
) -> None:
    body = b"" if status[:3] == "304" else json.dumps({"error": "why"}).encode()
    peer.pages["/"] = reply(body, status, "Content-Type: application/json")

    with pytest.raises(HttpFailed) as failed:
        await run({}, url=peer.url("/", "api.example"))

    says = "its body is in the output" if body else "its body is empty"
    assert failed.value.as_dict() == {
        "code": f"HttpStatus:{status[:3]}",
        "message": f"GET api.example answered {status}; {says}.",
        "retryable": is_retryable,
        "details": {"status": int(status[:3])},
    }
    assert failed.value.result is not None
    assert failed.value.result.structured == ({"error": "why"} if body else None)


def test_a_definition_that_cannot_work_is_refused_with_a_sentence(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"url": "ftp://api.example/"}, "http:// or https://"),
        ({"url": "/relative"}, "http:// or https://"),
        ({"url": "https:///x"}, "host"),
        ({"url": "https://{host}/x"}, "allowed in the path only"),
        ({"url": "https://api.example/?q={q}"}, "allowed in the path only"),
        ({"url": "https://api.example/#x"}, "fragment"),
        ({"url": "https://user:pw@api.example/"}, "user name"),
        ({"url": "https://api.example/a b"}, "blanks"),
        ({"url": "https://api.example/{}"}, "every {"),
        ({"url": "https://api.example/{a"}, "every {"),
        ({"url": "https://api.example/{a}"}, "{a} is not among the parameters"),
        ({"parameters": {"type": "string"}}, "object"),
        ({"places": {"a": "query"}}, "'a' is not among the parameters"),
        ({"parameters": of(a={}), "places": {"a": "path"}}, "the path of the URL has no {a}"),
        ({"parameters": of(a={}), "places": {"a": "body"}}, "a GET request has no body"),
        ({"parameters": of(a={}), "places": {"a": {"place": "header", "name": "Host"}}}, "written by the service"),
        ({"parameters": of(a={}), "places": {"a": {"place": "header", "name": "a b"}}}, "name of a header"),
        ({"parameters": of(a={}, b={}), "places": {"b": {"place": "query", "name": "a"}}}, "both sent as 'a'"),
        (
            {"parameters": of(a={}, b={}), "method": "PUT", "places": {"a": "whole_body", "b": "body"}},
            "excludes other arguments",
        ),
        ({"parameters": of(x={}), "places": {"x": "header"}, "headers": {"X": "1"}}, "would override the fixed"),
        ({"parameters": of(x={}), "query": {"x": {"secret": "TOKEN"}}}, "would override the fixed"),
        ({"headers": {"Content-Length": "1"}}, "written by the service"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "written by the service"),
        ({"headers": {"X": "a\r\nY: b"}}, "line breaks"),
        ({"headers": {"X Y": "a"}}, "name of a header"),
        ({"headers": {"Connection": {"secret": "TOKEN"}}}, "written by the service"),
        ({"headers": {"X": {"secret": "not a name"}}}, "name"),
        ({"cookies": {"a=b": {"secret": "TOKEN"}}}, "name of a cookie"),
    ]
    for definition, sentence in cases:
        with subtests.test(definition=definition, sentence=sentence):
            with pytest.raises(ValueError, match=r"\.$") as refused:
                make(defined(**definition), None)

            assert sentence in str(refused.value)
