import errno
import inspect
import re

import pytest

from app.core import errors
from app.core.errors import CallError, FileFailed, HttpFailed, ProgramFailed, StoreError, TimedOut
from app.core.results import Result

DRAWN = re.compile(r"^ {4}(?:│   )?(?:[├└]── )?([A-Z]\w+) {2,}\S", re.MULTILINE)
ROOTS = {"CallError", "Refusal", "StoreError", "Misconfigured"}

CLASSES = {name: cls for name, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__}
CALL_ERRORS = [cls for cls in CLASSES.values() if issubclass(cls, CallError) and cls is not CallError]


def drawn() -> dict[str, str]:
    """Each name in the tree of the docstring, with the root it hangs on."""
    tree: dict[str, str] = {}
    root = ""
    for name in DRAWN.findall(errors.__doc__ or ""):
        root = name if name in ROOTS else root
        tree[name] = root
    return tree


def test_the_drawn_tree_is_the_real_one() -> None:
    assert drawn() == {name: (ROOTS & {cls.__name__ for cls in cls.__mro__}).pop() for name, cls in CLASSES.items()}


def test_every_error_but_the_file_systems_has_a_code_of_its_own() -> None:
    codes = {cls.__name__: cls.code for cls in CALL_ERRORS if cls not in (FileFailed, HttpFailed, ProgramFailed)}

    assert codes == {name: name for name in codes} | {"McpFailed": "McpError", "TimedOut": "Timeout"}


@pytest.mark.parametrize("name", ["ENOENT", "EACCES", "EISDIR", "ENOTDIR", "EEXIST", "ENOSPC", "EINVAL", "ELOOP"])
def test_a_file_failure_has_the_name_of_its_errno_as_code(name: str) -> None:
    failed = FileFailed(getattr(errno, name), "src/a.py")

    assert failed.code == name
    assert failed.message.startswith("src/a.py: ")
    assert failed.message.endswith(".")


def test_a_file_failure_can_bring_its_own_sentence_and_an_unknown_number() -> None:
    assert FileFailed(4242, "a", "Nothing here.").as_dict() == {
        "code": "E4242",
        "message": "Nothing here.",
        "retryable": False,
        "details": {"path": "a"},
    }


def test_one_failure_does_not_change_the_code_of_another() -> None:
    first, second = FileFailed(errno.ENOENT, "a"), FileFailed(errno.EACCES, "b")

    assert (first.code, second.code, FileFailed.code) == ("ENOENT", "EACCES", "Internal")


def test_an_error_tells_code_message_and_whether_trying_again_can_help() -> None:
    error = TimedOut("toy took longer than 5 s.", result=Result("half"))

    assert error.as_dict() == {"code": "Timeout", "message": "toy took longer than 5 s.", "retryable": True}
    assert (str(error), error.result) == ("toy took longer than 5 s.", Result("half"))


def test_exactly_the_errors_that_pass_with_time_are_retryable() -> None:
    assert {cls.code for cls in CALL_ERRORS if cls.retryable} == {
        "Timeout",
        "Overloaded",
        "ToolUnavailable",
        "NetworkError",
        "NetworkTimeout",
        "DNSError",
    }


@pytest.mark.parametrize(("status", "can_help"), [(404, False), (408, True), (429, True), (500, True), (503, True)])
def test_a_status_that_passes_with_time_is_retryable(status: int, can_help: bool) -> None:
    failed = HttpFailed(status, "The service said no.", result=Result("its body"))

    assert (failed.code, failed.retryable, failed.details) == (f"HttpStatus:{status}", can_help, {"status": status})


def test_a_failed_store_is_no_answer_to_a_call() -> None:
    assert not issubclass(StoreError, CallError)


def test_a_program_that_failed_has_its_exit_code_in_the_code() -> None:
    failed = ProgramFailed(3, "It did not work.", result=Result("what it said"))

    assert (failed.code, failed.retryable, failed.details) == ("ExitCode:3", False, {"exit_code": 3})
    assert failed.result == Result("what it said")
