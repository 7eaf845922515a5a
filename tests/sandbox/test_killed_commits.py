"""kill -9 in the middle of a commit: each file is whole, old or new, and what is left behind goes later."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.core.ports import Change
from app.sandbox.files import temp_files
from app.sandbox.files.workspace import LocalWorkspace
from tests.sandbox.killed_commits import SIZE
from tests.support.scale import rounds

ROOT = Path(__file__).parent.parent.parent
LEFTOVER = re.compile(r"(.*/)?\.toolcrib-[0-9a-f]{8}-[0-9a-f]{16}")
OLD_OR_NEW: dict[str, list[Any]] = {
    "a": [["alpha", SIZE], ["ALPHA", SIZE]],
    "b": [["beta", SIZE], None],
    "d/c": [["gamma", SIZE], ["GAMMA", SIZE]],
    "new/folder/file": [None, ["new", SIZE]],
}


def killed(root: Path, *how: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.killed_commits", str(root), *how],
        cwd=ROOT,
        capture_output=True,
        timeout=200,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("renamer", ["exchange", "link", pytest.param("copy", marks=pytest.mark.faults)])
def test_before_whatever_step_it_is_killed_every_file_is_whole(tmp_path: Path, renamer: str) -> None:
    told = killed(tmp_path / "root", renamer)

    assert len(told) > 50
    assert [one["status"] for one in told] == [-9] * (len(told) - 1) + [0]
    for one in told:
        files = {name: text for name, text in one["left"].items() if not LEFTOVER.fullmatch(name)}
        assert set(files) <= set(OLD_OR_NEW), one["step"]
        for name, whole in OLD_OR_NEW.items():
            assert files.get(name) in whole, one["step"]
    assert {name: told[-1]["left"].get(name) for name in OLD_OR_NEW} == {n: new for n, (_, new) in OLD_OR_NEW.items()}
    assert set(told[-1]["left"]) < set(OLD_OR_NEW)


def test_what_a_killed_commit_left_behind_is_gone_after_the_next_one_an_hour_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    told = killed(root, "at-random", "3")
    now, ws = time.time, LocalWorkspace(root)
    monkeypatch.setattr(time, "time", lambda: now() + 3700)
    monkeypatch.setattr(temp_files, "_swept", type(temp_files._swept)())

    ws.commit([Change(path=path, data=b"x", before=ws.stamp(path)) for path in ("a", "d/c", "new/file")])

    ws.close()
    assert told[-1]["status"] == -9
    assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} == {"a", "b", "d/c", "new/file"}


@pytest.mark.sampled
def test_at_whatever_moment_it_is_killed_every_file_is_whole(tmp_path: Path) -> None:
    times = rounds(15, 150)
    told = killed(tmp_path / "root", "at-random", str(times))

    texts = {json.dumps(text) for one in told for name, text in one["left"].items() if not LEFTOVER.fullmatch(name)}
    whole = {json.dumps([word, SIZE]) for word in ("alpha", "beta", "gamma", *"0123456789")}
    assert [one["status"] for one in told] == [-9] * times
    assert texts <= whole
    assert len(texts) > 3
