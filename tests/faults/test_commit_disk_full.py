"""A disk that is full in the middle of a commit: nothing is changed, nothing is left behind, and later it works."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.disks import NoNamespace, SmallDisk

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parent.parent.parent
SIZE = 300_000
PROGRAM = """
import json, sys
from pathlib import Path
from app.core.errors import CallError
from app.core.ports import Change
from app.sandbox.files.workspace import LocalWorkspace

root, size = Path(sys.argv[1]), int(sys.argv[2])
ws = LocalWorkspace(root)
changes = [
    Change(path="a", data=b"A" * size, before=ws.stamp("a")),
    Change(path="new/b", data=b"B" * size, before=None),
    Change(path="gone", data=None, before=ws.stamp("gone")),
    Change(path="c", data=b"C" * size, before=ws.stamp("c")),
]
try:
    ws.commit(changes)
    code = None
except CallError as error:
    code = error.code
files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "ballast"]
print(json.dumps({"code": code, "left": {str(path.relative_to(root)): path.read_text()[:3] for path in files}}))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk", "2m")
    except NoNamespace as reason:
        pytest.skip(str(reason))
    yield disk
    disk.close()


def commit(disk: SmallDisk) -> dict[str, Any]:
    command = disk.inside([sys.executable, "-c", PROGRAM, str(disk.path), str(SIZE)])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("room", [0, 1, SIZE - 1, SIZE + 1, 2 * SIZE])
def test_a_commit_that_does_not_fit_changes_nothing(disk: SmallDisk, room: int) -> None:
    for name in ("a", "c", "gone"):
        (disk.seen / name).write_text(f"old {name}")
    size = disk.fill("ballast")
    with (disk.seen / "ballast").open("r+b") as ballast:
        ballast.truncate(size - room)

    assert commit(disk) == {"code": "ENOSPC", "left": {"a": "old", "c": "old", "gone": "old"}}

    (disk.seen / "ballast").unlink()
    assert commit(disk) == {"code": None, "left": {"a": "AAA", "c": "CCC", "new/b": "BBB"}}
