import io
import json
import logging
from collections.abc import Iterator

import pytest

from app import logs
from app.core.calls import current_call
from app.core.redaction import Redactor


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_names_the_call_it_belongs_to() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", Redactor(), stream)
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
    logs.configure("info", "json", Redactor(), stream)

    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("app").exception("it broke")

    [line] = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["exception"]


def test_text_is_for_people_and_levels_are_kept() -> None:
    stream = io.StringIO()
    logs.configure("warning", "text", Redactor(), stream)

    logging.getLogger("app").info("not shown")
    logging.getLogger("app").warning("shown")

    [line] = stream.getvalue().splitlines()
    assert line.endswith("warning shown")


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_says_a_secret_not_even_in_a_traceback(form: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, Redactor(["hunter22/\\\n2"]), stream)

    try:
        raise ValueError("hunter22/\\\n2 was wrong")
    except ValueError:
        logging.getLogger("app.somewhere").exception("with %s and %r", "hunter22/\\\n2", "hunter22/\\\n2")
    logging.getLogger("uvicorn.error").error("https://me:pass0815@host")

    assert "hunter22" not in stream.getvalue()
    assert "pass0815" not in stream.getvalue()
    assert stream.getvalue().count("[redacted]") >= 4


def test_a_line_may_bring_its_own_calls_and_facts() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", Redactor(), stream)
    token = current_call.set("call_1")

    logging.getLogger("app").info("two", extra={"call": ["call_2", "call_3"], "facts": {"status": 200, "level": "no"}})
    logging.getLogger("app").info("none", extra={"call": None})
    current_call.reset(token)

    two, none = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (two["call"], two["status"], two["level"]) == (["call_2", "call_3"], 200, "info")
    assert "call" not in none


def test_text_names_the_calls_of_a_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", Redactor(), stream)

    logging.getLogger("app").info("one", extra={"call": "call_1"})
    logging.getLogger("app").info("two", extra={"call": ["call_2", "call_3"]})

    one, two = stream.getvalue().splitlines()
    assert one.endswith("one  [call_1]")
    assert two.endswith("two  [call_2 call_3]")
