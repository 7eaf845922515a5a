import io
import json
import logging
from collections.abc import Iterator

import pytest

from app import logs
from app.core.calls import current_call


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_names_the_call_it_belongs_to() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    token = current_call.set("call_1")

    logging.getLogger("app.somewhere").info("hello %s", "world")
    current_call.reset(token)
    logging.getLogger("app.somewhere").info("outside")

    inside, outside = (json.loads(line) for line in stream.getvalue().splitlines())
    assert {name: inside[name] for name in ("level", "logger", "message", "call")} == {
        "level": "info",
        "logger": "app.somewhere",
        "message": "hello world",
        "call": "call_1",
    }
    assert "call" not in outside


def test_a_traceback_is_one_line_of_json_too() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)

    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("app").exception("it broke")

    [line] = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["exception"]


def test_text_is_for_people_and_levels_are_kept() -> None:
    stream = io.StringIO()
    logs.configure("warning", "text", stream)

    logging.getLogger("app").info("not shown")
    logging.getLogger("app").warning("shown")

    [line] = stream.getvalue().splitlines()
    assert line.endswith("warning shown")
