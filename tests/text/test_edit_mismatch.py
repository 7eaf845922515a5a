import pytest

from app.core.errors import EditMismatch
from app.text.edit import nearest_lines
from app.text.edit.replacers import explain_mismatch

NOT_FOUND = EditMismatch("old_string was not found", details={"reason": "not_found"})


def test_the_edit_may_be_made_and_other_lines_be_like_the_old_ones() -> None:
    text = "limit = 20\n\ndef rate(x):\n    return x\n"

    error = explain_mismatch(NOT_FOUND, "a.py", "def rates(x):", "limit = 20", text)

    assert error.message == (
        "old_string is not in a.py. But new_string is, in line 1: the edit seems to be applied already."
        " Did you mean to replace these lines?\nL3: def rate(x):"
    )


@pytest.mark.parametrize("new", ["", " ", "\n"])
def test_white_space_is_everywhere_and_tells_nothing(new: str) -> None:
    error = explain_mismatch(NOT_FOUND, "a.py", "something else", new, "x = 1 \n\n")

    assert error.message == "old_string is not in a.py. Read the file again, and give the text exactly as it is there."
    assert error.details == {"path": "a.py", "reason": "not_found"}


def test_only_so_much_of_a_file_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest_lines, "MAX_SHOWN_LINES", 2)
    monkeypatch.setattr(nearest_lines, "MAX_SHOWN_COLUMNS", 6)
    text = "".join(f"line number {number}\n" for number in range(9))

    error = explain_mismatch(NOT_FOUND, "a.py", "line number 3\nline number 4\nline number 7\n", "x", text)

    assert error.details == {
        "path": "a.py",
        "reason": "not_found",
        "nearest": {"line": 4, "text": "line n…\nline n…\n…"},
    }


def test_what_may_not_be_shown_is_not_looked_at() -> None:
    error = explain_mismatch(NOT_FOUND, "a.py", "limit = 10", "limit = 20", None)

    assert error.details == {"path": "a.py", "reason": "not_found"}
