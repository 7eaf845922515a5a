import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.errors import CallError, FileFailed
from app.sandbox.files import openat2
from app.sandbox.files.workspace import LocalWorkspace
from tests.sandbox.rename_race import exchanging


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("SECRET")
    root = tmp_path / "root"
    root.mkdir()
    (root / "f").write_text("ok")
    return root


def read(workspace: LocalWorkspace, path: str, approved: str | None = None) -> str:
    with workspace.open(path, approved=approved) as file:
        return file.read().decode()


@pytest.mark.parametrize("has_openat2", [True, False])
def test_a_folder_swapped_for_a_link_never_lets_anyone_out(
    ws: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch, has_openat2: bool
) -> None:
    monkeypatch.setattr(openat2, "is_supported", lambda: has_openat2)
    (root / "a").mkdir()
    (root / "a/secret").write_text("inside")
    (root / "b").symlink_to("..")

    seen, swaps = race(lambda: read(ws, "a/secret"), root / "a", root / "b")

    assert swaps > 100
    assert seen >= {"inside", "OutsideWorkspace"}
    assert "SECRET" not in seen


def test_a_folder_swapped_for_a_link_never_shows_what_was_not_approved(ws: LocalWorkspace, root: Path) -> None:
    for folder in ("a", "private"):
        (root / folder).mkdir()
        (root / folder / "f").write_text(folder)
    (root / "b").symlink_to("private")

    seen, swaps = race(lambda: read(ws, "a/f", approved="a/f"), root / "a", root / "b")

    assert swaps > 100
    assert seen >= {"a", "ESTALE"}
    assert "private" not in seen


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_that_knows_no_openat2_is_recognised(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(openat2, "_syscall", lambda *args: -number)

    assert openat2.is_supported.__wrapped__() is False


def test_a_passing_trouble_is_not_taken_for_a_missing_openat2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openat2, "_syscall", lambda *args: -errno.EMFILE)

    with pytest.raises(OSError, match="Too many open files"):
        openat2.is_supported.__wrapped__()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EINTR])
def test_a_disturbed_lookup_is_tried_again_but_not_for_ever(
    ws: LocalWorkspace, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    syscall, answers = openat2._syscall, [-number] * 63
    monkeypatch.setattr(openat2, "_syscall", lambda *args: answers.pop() if answers else syscall(*args))

    assert read(ws, "f") == "ok"

    answers += [-number] * 64
    with pytest.raises(FileFailed) as caught:
        ws.open("f")
    assert caught.value.code == errno.errorcode[number]


def race(look: Callable[[], str], one: Path, other: Path) -> tuple[set[str], int]:
    """Everything a second of looking saw (contents and error codes), while two names were exchanged all the time."""
    seen = set[str]()
    deadline = time.monotonic() + 1
    with exchanging(one, other) as swaps:
        while time.monotonic() < deadline:
            try:
                seen.add(look())
            except CallError as error:
                seen.add(error.code)
    return seen, swaps[0]
