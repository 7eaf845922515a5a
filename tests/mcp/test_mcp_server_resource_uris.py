"""Addresses: which server a resource is of, when all servers are shown as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.util.json_codec import Raw
from app.mcp.server.resources import (
    PREFIX,
    Address,
    matches_template,
    parse_prefixed,
    prefix_uri,
    servers_of,
    with_unique_uris,
)


@given(st.text("abc_-09", min_size=1), st.text(min_size=1))
def test_what_was_prefixed_is_read_back_whatever_the_uri_is(server: str, uri: str) -> None:
    assert parse_prefixed(prefix_uri(server, uri)) == Address(server, uri)


@pytest.mark.parametrize("uri", ["file:///a", PREFIX, f"{PREFIX}shop", f"{PREFIX}shop/", f"{PREFIX}/file:///a"])
def test_anything_else_names_no_server(uri: str) -> None:
    assert parse_prefixed(uri) is None


def test_only_what_does_not_say_its_server_gets_a_prefix() -> None:
    listed: list[Raw] = [
        {"server": "a", "uri": "file:///mine"},
        {"server": "a", "uri": "file:///both"},
        {"server": "b", "uri": "file:///both"},
        {"server": "b", "uri": "toolcrib://mcp/a/file:///mine"},
        {"server": "b", "uri": 7},
    ]

    assert [item["uri"] for item in with_unique_uris(listed, "uri")] == [
        "file:///mine",
        "toolcrib://mcp/a/file:///both",
        "toolcrib://mcp/b/file:///both",
        "toolcrib://mcp/b/toolcrib://mcp/a/file:///mine",
    ]


def test_who_lists_a_resource_comes_before_who_has_a_template_for_it() -> None:
    resources = [{"server": "b", "uri": "note://1"}]
    templates = [{"server": "a", "uriTemplate": "note://{id}"}]

    assert servers_of("note://1", resources, templates) == ["b"]
    assert servers_of("note://2", resources, templates) == ["a"]
    assert servers_of("memo://2", resources, templates) == []


@pytest.mark.parametrize(
    ("uri", "template"),
    [
        ("note://1", "note://1"),
        ("note://1", "note://{id}"),
        ("note://", "note://{id}"),
        ("note://1/of/2.txt", "note://{id}/of/{all}.txt"),
        ("repo://a/b/c", "repo://{+path}"),
        ("repo://src/app-1/main.py-v2", "repo://{+path}-{version}"),
        ("find://x?q=1&at=/a", "find://{what}{?q,at}"),
    ],
)
def test_a_template_fits_what_it_could_have_given(uri: str, template: str) -> None:
    assert matches_template(uri, template)


@pytest.mark.parametrize(
    ("uri", "template"),
    [
        ("note://1/2", "note://{id}"),
        ("note://1/of", "note://{id}/of/{all}"),
        ("memo://1", "note://{id}"),
        ("note://aba", "note://ab{x}ba"),
        ("note://1/x/of/2", "note://{id}/of/{all}"),
        ("note://1", None),
        ("note://12", "note://1"),
    ],
)
def test_it_fits_nothing_else(uri: str, template: object) -> None:
    assert not matches_template(uri, template)


def test_no_template_takes_long() -> None:
    """It would by trying all ways; this ends, as each part is looked for once."""
    assert not matches_template("a" * 20_000, "{+x}a" * 2_000 + "b")
