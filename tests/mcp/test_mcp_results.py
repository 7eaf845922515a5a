"""Results of MCP servers, read: every kind of content, and what is wrong with it."""

import base64
import json
from typing import Any

import pytest

from app.core.results import Attachment, Result, data_of
from app.core.util.json_codec import dumps
from app.custom import json_schema
from app.mcp.client import results
from app.mcp.client.interfaces import JsonRpcError

PNG = base64.b64encode(b"\x89PNG").decode()


def read(*blocks: Any, **more: Any) -> Result:
    return results.to_result({"content": list(blocks), **more}, "Title")


def said(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_texts_are_joined() -> None:
    found = read(said("one"), said("two"), said(""))

    assert found == Result("one\ntwo\n", "Title", {"content": [{"block": said(text)} for text in ("one", "two", "")]})


def test_images_and_sounds_are_files() -> None:
    found = read(
        said("look"),
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
    )

    assert found.output == "look"
    assert found.attachments == (
        Attachment("image/png", f"data:image/png;base64,{PNG}", "image1.png"),
        Attachment("audio/wav", "data:audio/wav;base64,AAAA", "audio2.wav"),
    )


def test_where_there_are_only_files_the_model_is_told_so() -> None:
    found = read({"type": "image", "data": PNG, "mimeType": "image/png"})

    assert found.output == "The tool returned a file, attached: image1.png"


def test_embedded_resources_are_text_under_their_address_or_files_of_their_name() -> None:
    found = read(
        {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "hello"}},
        {"type": "resource", "resource": {"uri": "file:///x/b%20c.bin", "blob": "AAAA"}},
    )

    assert found.output == "file:///a.txt:\nhello"
    assert found.attachments == (
        Attachment("application/octet-stream", "data:application/octet-stream;base64,AAAA", "b c.bin"),
    )


def test_a_link_is_a_line_and_kept() -> None:
    link = {"type": "resource_link", "uri": "doc://1", "name": "one", "mimeType": "text/plain"}

    found = read(link)

    assert found.output == "[Resource doc://1: one]"
    assert found.metadata == {
        "resource_links": [{"uri": "doc://1", "name": "one", "mimeType": "text/plain"}],
        "content": [{"block": link}],
    }


BLOCKS: list[Any] = [
    said("look") | {"annotations": {"priority": 1}},
    {"type": "image", "data": PNG, "mimeType": "image/png", "_meta": {"x": 1}},
    {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "hello"}},
    {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": "AAAA"}, "annotations": {}},
    {"type": "resource_link", "uri": "doc://1", "name": "one"},
]


def kept(result: Result) -> dict[str, Any]:
    """As it comes back from where it is stored."""
    back: dict[str, Any] = json.loads(dumps(result))
    return back


def encoded(number: int) -> str:
    return [PNG, "AAAA"][number]


def test_blocks_come_back_as_they_were() -> None:
    result = kept(read(*BLOCKS))

    assert PNG not in dumps(result["metadata"]).decode()
    assert results.blocks_of(result, encoded) == BLOCKS


def test_one_text_is_kept_once() -> None:
    result = kept(read(said("long")))

    assert "content" not in result["metadata"]
    assert results.blocks_of(result, encoded) is None


def test_what_is_not_known_or_cannot_be_read_is_a_text_among_the_blocks() -> None:
    broken = {"type": "image", "data": "&", "mimeType": "image/png", "attachment": 0}
    result = kept(read({"type": "hologram"}, broken, said("end")))

    blocks = results.blocks_of(result, encoded)

    assert blocks is not None
    assert [block["type"] for block in blocks] == ["text"] * 3
    assert "\n".join(block["text"] for block in blocks) == result["output"]


def test_blocks_that_say_something_else_than_the_model_reads_are_not_given() -> None:
    result = kept(read(*BLOCKS))

    assert results.blocks_of(result | {"output": "changed by a hook"}, encoded) is None


def test_many_words_are_not_kept_twice() -> None:
    result = kept(read(said("x" * results.MAX_BLOCK_BYTES), said("y")))

    assert "content" not in result["metadata"]


@pytest.mark.parametrize("structured", [{"a": 1}, [1, 2], "text", 5, False])
def test_structured_content_of_any_type_is_kept_and_is_the_output_where_there_is_none(structured: Any) -> None:
    alone = results.to_result({"structuredContent": structured})
    beside = read(said("in words"), structuredContent=structured)

    assert alone.structured == structured
    assert alone.output == dumps(structured).decode()
    assert (beside.output, beside.structured) == ("in words", structured)


@pytest.mark.parametrize(
    "block", [{"type": "video", "url": "x"}, {"type": "text"}, 7, {"type": "resource", "resource": {}}]
)
def test_what_is_not_known_is_mentioned_and_kept(block: Any) -> None:
    found = read(said("one"), block)

    assert found.output.startswith("one\n[Content of the unknown type ")
    assert found.metadata["unknown_content"] == [block]


def test_base64_that_is_none_costs_only_itself() -> None:
    found = read({"type": "image", "data": "!!!", "mimeType": "image/png"}, said("fine"))

    assert found.output == "[The image of type image/png is left out: its base64 is invalid.]\nfine"
    assert found.attachments == ()
    assert found.metadata["left_out"] == [{"what": "image of type image/png", "reason": "its base64 is invalid"}]


def test_what_there_is_no_room_for_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MAX_ATTACHED_BYTES", 5)

    found = read(*({"type": "image", "data": PNG, "mimeType": "image/png"} for _ in range(2)))

    assert len(found.attachments) == 1
    assert found.output == (
        "[The image of type image/png is left out: it has 4 bytes, and all attachments of a call have at most 5.]"
    )


def test_a_type_that_would_break_the_address_is_not_used() -> None:
    found = read({"type": "image", "data": PNG, "mimeType": "image/png;base64,AAAA"})

    assert found.attachments[0].mime == "image/x-unknown"


@pytest.mark.parametrize("raw", [{}, {"content": []}, {"content": "none"}, {"content": None}])
def test_nothing_is_a_sentence(raw: dict[str, Any]) -> None:
    assert results.to_result(raw).output == "The tool returned nothing."


def test_what_the_server_notes_is_kept() -> None:
    assert read(said("x"), _meta={"vendor/cost": 3}).metadata == {"_meta": {"vendor/cost": 3}}


@pytest.mark.parametrize(
    ("schema", "structured", "violation"),
    [
        ({"type": "object", "required": ["n"]}, {"n": 1}, None),
        ({"type": "object", "required": ["n"]}, {}, "The structured content violates the tool's output schema: "),
        ({"type": "object"}, None, "The tool has an output schema, but returned no structured content."),
        ({"type": "array", "items": {"type": "integer"}}, [1, "2"], "`1`: expected integer (got '2')"),
        ({"type": "array"}, [1, "2"], None),
    ],
)
def test_the_output_schema_is_checked_as_it_is(schema: dict[str, Any], structured: Any, violation: str | None) -> None:
    """Numbers in texts are no numbers here: what a server sends is not put right, it is told."""
    found = results.to_result({"content": [], "structuredContent": structured}, check=json_schema.make_checker(schema))

    told = found.metadata.get("output_schema_violation", "")
    assert told == "" if violation is None else violation in told


def test_an_error_is_not_held_against_the_output_schema() -> None:
    found = results.to_result(
        {"content": [said("no")], "isError": True}, check=json_schema.make_checker({"type": "object"})
    )

    assert found.metadata == {}


def test_the_output_schema_of_a_hostile_server_cannot_make_us_think_forever() -> None:
    slow = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}

    found = results.to_result({"structuredContent": {"a": "a" * 5000 + "!"}}, check=json_schema.make_checker(slow))

    assert found.structured == {"a": "a" * 5000 + "!"}


@pytest.mark.parametrize(
    ("uri", "name"),
    [("file:///a/b.txt", "b.txt"), ("doc://host", "host"), ("x", "x"), ("http://[", None), ("file:///a%2Fb%00", "ab")],
)
def test_a_files_name_comes_from_its_address(uri: str, name: str | None) -> None:
    assert results.file_name(uri) == name


def test_what_is_too_large_to_be_kept_in_the_result_is_a_file() -> None:
    large = {"rows": ["x" * 1000] * 5000}

    found = read(said("see there"), {"type": "hologram", "rays": "x" * 100_000}, structuredContent=large)

    assert found.structured is None
    assert found.metadata == {}
    assert [one.filename for one in read(["x" * 100_000]).attachments] == ["content.json"]
    assert [one.filename for one in found.attachments] == ["content.json", "structured.json"]
    assert json.loads(data_of(found.attachments[1].url) or b"") == large
    assert "is attached as structured.json" in found.output


def test_an_error_keeps_only_so_much_of_what_came_with_it() -> None:
    assert results.error_details(JsonRpcError(-1, "no", {"a": 1})) == {"code": -1, "message": "no", "data": {"a": 1}}
    kept = results.error_details(JsonRpcError(-1, "n" * 100_000, ["x" * 100_000]))
    assert len(kept["message"]) == 16 * 1024
    assert kept["data"] == "[100,004 bytes, too large to store]"
