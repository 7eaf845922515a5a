"""Answers as the Responses dialect takes them."""

import base64
import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from app.core.runs import CommandEnd, Failure, Json, Media, ModelCall, Reply, SearchResult, Text
from app.providers.responses.results import BLANK
from tests.providers.neutral import PIXEL
from tests.providers.responses import CHECK, CLICK, EXEC, PATCH, PROGRAM, answer, function, written


def test_every_reply_has_one_item_in_its_place_with_its_id_and_caller() -> None:
    items = written(
        Reply(call=function("c1", caller=PROGRAM), parts=(Text("12 C"), Json({"a": 1}))),
        Reply(call=ModelCall(id="c2", name="note", type="custom", input="x", caller={"type": "direct"})),
        Reply(call=function("c3"), error=Failure("ENOENT", "no such file: a"), parts=(Text("so far"),)),
    )

    assert items == [
        {"type": "function_call_output", "call_id": "c1", "output": '12 C\n{"a": 1}', "caller": PROGRAM},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "(no output)", "caller": {"type": "direct"}},
        {"type": "function_call_output", "call_id": "c3", "output": "[ERROR:ENOENT] no such file: a\nso far"},
    ]


def test_an_id_that_was_not_given_is_not_made_up() -> None:
    assert answer(function(None), Text("x")) == {"type": "function_call_output", "output": "x"}


def test_images_and_files_are_parts_of_the_output() -> None:
    parts = (
        Text("Here."),
        Media(mime="image/png", data=PIXEL),
        Media(mime="application/pdf", data="JVBERi0=", name="a.pdf"),
        Media(mime="text/csv; charset=utf-8", data="YSxi"),
        Media(mime="image/jpeg", url="https://example.com/a.jpg"),
        Media(mime="application/pdf", url="https://example.com/a.pdf"),
        SearchResult(source="s", title="T", text="found"),
    )

    assert answer(function(), *parts, error=("Timeout", "late"))["output"] == [
        {"type": "input_text", "text": "[ERROR:Timeout] late"},
        {"type": "input_text", "text": "Here."},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        {"type": "input_file", "filename": "file", "file_data": "data:text/csv; charset=utf-8;base64,YSxi"},
        {"type": "input_image", "image_url": "https://example.com/a.jpg"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_text", "text": "T (s)\nfound"},
    ]


def test_a_free_form_call_says_the_detail_of_an_image() -> None:
    call = ModelCall(id="c", name="note", type="custom", input="")

    assert answer(call, Media(mime="image/png", data=PIXEL))["output"] == [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
    ]


@pytest.mark.parametrize(
    "media",
    [
        Media(mime="image/svg+xml", data="PHN2Zz4=", name="a.svg"),
        Media(mime="audio/wav", data="UklGRg==", name="a.wav"),
        Media(mime="application/zip", data="UEs=", name="a.zip"),
        Media(mime="image/png", url="/v1/attachments/att_1", name="a.png"),
        Media(mime="application/pdf", url="file:///a.pdf", name="a.pdf"),
    ],
)
def test_what_cannot_be_sent_leaves_a_word_in_its_place(media: Media) -> None:
    output = answer(function(), media)["output"]

    assert isinstance(output, str)
    assert media.mime in output
    assert f" {media.name} " in output


def test_a_patch_tells_how_it_ended_and_says_nothing_where_nothing_is_to_be_said() -> None:
    call = ModelCall(id="c", name="apply_patch", type="apply_patch", arguments=PATCH, caller=PROGRAM)

    assert answer(call) == {
        "type": "apply_patch_call_output",
        "call_id": "c",
        "status": "completed",
        "caller": PROGRAM,
    }
    assert answer(call, error=("PatchMismatch", "does not fit"))["status"] == "failed"
    assert answer(call, Text("Done."), Media(mime="image/png", data=PIXEL))["output"] == "Done.\n[image (image/png)]"


def shell(**action: Any) -> ModelCall:
    return ModelCall(id="c", name="shell", type="shell", arguments=action)


def test_a_shell_that_failed_before_it_ran_anything_says_so_for_each_command() -> None:
    item = answer(shell(commands=["a", "b"]), error=("PermissionDenied", "no"))
    unreadable = answer(replace(shell(), arguments=None), error=("InvalidArgs", "cut"))
    failed = {"stdout": "", "stderr": "[ERROR:PermissionDenied] no", "outcome": {"type": "exit", "exit_code": 1}}

    assert item == {"type": "shell_call_output", "call_id": "c", "output": [failed, failed]}
    assert [entry["stderr"] for entry in unreadable["output"]] == ["[ERROR:InvalidArgs] cut"]


def test_commands_that_ran_are_kept_when_the_call_failed_after_them() -> None:
    ends = (CommandEnd(stdout="a\n", exit_code=0),)

    output = answer(shell(commands=["a", "b"]), error=("Canceled", "stopped"), commands=ends)["output"]

    assert [entry["stdout"] for entry in output] == ["a\n", ""]
    assert [entry["stderr"] for entry in output] == ["", "[ERROR:Canceled] stopped"]


def test_the_limit_of_a_shell_is_kept_and_given_back() -> None:
    ends = (CommandEnd(stdout="x" * 500, stderr="y" * 20, exit_code=0),)

    item = answer(shell(commands=["a"], max_output_length=100), commands=ends)

    [entry] = item["output"]
    assert item["max_output_length"] == 100
    assert (len(entry["stdout"]), entry["stderr"]) == (80, "y" * 20)


def test_a_shell_that_has_only_words_to_give_gives_them_as_its_output() -> None:
    [entry] = answer(shell(commands=["a"]), Text("said"))["output"]

    assert entry == {"stdout": "said", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            {"commands": (CommandEnd(stdout="é", stderr="e", exit_code=2),)},
            {"stdout": "é", "stderr": "e", "exit_code": 2},
        ),
        (
            {"commands": (CommandEnd(stdout="so far"),)},
            {"stdout": "so far", "stderr": "", "exit_code": None, "timed_out": True},
        ),
        ({"error": ("Declined", "no")}, {"stdout": "", "stderr": "[ERROR:Declined] no", "exit_code": 1}),
    ],
)
def test_a_local_shell_tells_its_end_as_json(reply: dict[str, Any], told: dict[str, Any]) -> None:
    item = answer(ModelCall(id="c", name="local_shell", type="local_shell", arguments=EXEC), **reply)

    assert (item["type"], item["id"], json.loads(item["output"])) == ("local_shell_call_output", "c", told)


def computer(**more: Any) -> ModelCall:
    return ModelCall(id="c", name="computer", type="computer", arguments={"action": CLICK} | more)


def test_a_computer_shows_its_last_image_and_a_success_acknowledges_the_checks() -> None:
    first, last = Media(mime="image/png", data="AAAA"), Media(mime="image/png", data=PIXEL)

    item = answer(computer(pending_safety_checks=[CHECK]), Text("clicked"), first, last)

    assert item == {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PIXEL}"},
    }


def test_what_an_item_has_no_place_for_is_said_after_all_of_them() -> None:
    found = ModelCall(id="t", name="tool_search", type="tool_search", arguments={"query": "x"})

    items = written(
        Reply(call=computer(pending_safety_checks=[CHECK]), error=Failure("Timeout", "late")),
        Reply(call=computer(), parts=(Text("no screen"),)),
        Reply(call=found, error=Failure("InvalidArgs", "what?")),
        Reply(call=function("f"), parts=(Text("x"),)),
    )

    assert [item["type"] for item in items] == [
        "computer_call_output",
        "computer_call_output",
        "tool_search_output",
        "function_call_output",
        "message",
    ]
    assert items[0]["output"]["image_url"].startswith("data:image/png;base64,")
    assert "acknowledged_safety_checks" not in items[0]
    assert items[2]["tools"] == []
    assert items[-1] == {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "[ERROR:Timeout] late"},
            {"type": "input_text", "text": "There is no screenshot.\nno screen"},
            {"type": "input_text", "text": "[ERROR:InvalidArgs] what?"},
        ],
    }


def test_what_stands_for_a_screenshot_is_one_pixel_that_shows_nothing() -> None:
    image = Image.open(BytesIO(base64.b64decode(BLANK.partition(",")[2])))

    assert (image.size, image.mode, image.getpixel((0, 0))) == ((1, 1), "RGBA", (0, 0, 0, 0))
