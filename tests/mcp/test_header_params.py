"""Headers that repeat what a message is about, compared with what the SDK reads and writes."""

from typing import Any

import pytest
from mcp.shared.inbound import (
    decode_header_value,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from app.mcp.client.transports.header_params import HeaderParams, encode_value, header_params


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def marked(header: Any, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": header, **more}


GOOD = [
    schema(a=marked("A"), b=marked("B-b", "integer"), c=marked("C", "boolean"), d={"type": "string"}),
    schema(a=schema(b=schema(c=marked("Deep")))),
    schema(a={"type": "string", "default": {"x-mcp-header": "no"}, "enum": [{"x-mcp-header": 1}]}),
    {},
    None,
]
BAD = [
    marked("Root"),
    schema(a=marked("A b")),
    schema(a=marked("")),
    schema(a=marked(3)),
    schema(a=marked("A", "number")),
    schema(a=marked("A", ["string", "null"])),
    schema(a=marked("A", None)),
    schema(a=marked("A"), b=marked("a")),
    schema(a={"type": "array", "items": marked("A")}),
    schema(a={"anyOf": [marked("A")]}),
    schema() | {"$defs": {"x": marked("A")}},
    schema() | {"additionalProperties": marked("A")},
]


@pytest.mark.parametrize("one", GOOD)
def test_a_schema_says_which_arguments_are_repeated(one: Any) -> None:
    assert find_invalid_x_mcp_header(one) is None
    assert header_params(one) == x_mcp_header_map(one)


def test_a_schema_that_says_it_wrongly_is_refused(subtests: pytest.Subtests) -> None:
    for one in BAD:
        with subtests.test(one=one):
            assert find_invalid_x_mcp_header(one) is not None
            with pytest.raises(ValueError, match="x-mcp-header"):
                header_params(one)


def test_every_text_comes_through_as_it_is(subtests: pytest.Subtests) -> None:
    for value in [
        "plain",
        "with blanks",
        " edge",
        "edge ",
        "",
        "ü",
        "a\nb",
        "tab\t",
        "=?base64?eA==?=",
        "=?base64?",
        "\x7f",
    ]:
        with subtests.test(value=value):
            assert encode_value(value) == encode_header_value(value)
            assert decode_header_value(encode_value(value)) == value


def test_arguments_are_written_as_the_server_compares_them() -> None:
    one = schema(a=marked("A"), b=marked("B", "integer"), c=marked("C", "boolean"), d=schema(e=marked("E")))
    learned = HeaderParams()
    learned.set_tools([{"name": "t", "inputSchema": one}, {"name": 3}, 7, {"name": "bad", "inputSchema": BAD[0]}])
    for arguments in (
        {"a": "ü", "b": 12, "c": True, "d": {"e": "x"}},
        {"a": None, "b": 10**30, "c": False},
        {"a": ["x"], "b": 1.5, "d": 3},
        {"b": 10**5000},
        {},
    ):
        expected = mcp_param_headers(x_mcp_header_map(one), arguments)
        found = learned.of("tools/call", {"name": "t", "arguments": arguments})
        assert found == {"Mcp-Method": "tools/call", "Mcp-Name": "t", **expected}

    assert learned.of("tools/call", {"name": "bad", "arguments": {}}) == {"Mcp-Method": "tools/call", "Mcp-Name": "bad"}
    assert learned.of("tools/list", {}) == {"Mcp-Method": "tools/list"}
    assert learned.of("prompts/get", {"name": "p"}) == {"Mcp-Method": "prompts/get", "Mcp-Name": "p"}


def test_a_tool_that_is_listed_anew_says_it_anew() -> None:
    learned = HeaderParams()
    learned.set_tools([{"name": "t", "inputSchema": schema(a=marked("A"))}])
    learned.set_tools([{"name": "t", "inputSchema": schema(a={"type": "string"})}])
    learned.set_tools("nonsense")

    assert "Mcp-Param-A" not in learned.of("tools/call", {"name": "t", "arguments": {"a": "x"}})
