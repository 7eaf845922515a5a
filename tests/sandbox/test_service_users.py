"""Services as they are run: by an ordinary user or by root, on a bare machine or in a container."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.sandbox.selftest.canaries import NAMES

PROGRAM, SOURCES = Path(__file__).with_name("resident_service.py"), str(Path(__file__).parents[2])
ORDINARY = 61_200
SECONDS = 60
SCRIPT = "id -u; echo mine > made; cat made; echo > {outside}/made; cat {data}/records"
IS_ROOT = os.geteuid() == 0
WHO = {"root": True, "an ordinary user": False} if IS_ROOT else {"an ordinary user": False}


@pytest.fixture
def field() -> Iterator[Path]:
    """A workspace of the service's user, records, and a folder open to all: what is denied there is so by walls."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    for name, mode in (("data", 0o755), ("workspace", 0o755), ("outside", 0o777)):
        (base / name).mkdir()
        (base / name).chmod(mode)
    (base / "data" / "records").write_text("records")
    yield base
    shutil.rmtree(base)


def resident(
    field: Path, backend: str, *, is_root: bool = False, broken: bool = False, **become: Any
) -> dict[str, Any]:
    if IS_ROOT:
        os.chown(field / "workspace", *([61_100] * 2 if is_root else [ORDINARY] * 2))
    told = {
        "become": become if is_root else become | {"user": [ORDINARY, ORDINARY]},
        "backend": backend,
        "broken": broken,
        "data": str(field / "data"),
        "workspace": str(field / "workspace"),
        "script": SCRIPT.format(outside=field / "outside", data=field / "data"),
    }
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": SOURCES}
    command = [sys.executable, str(PROGRAM), json.dumps(told)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def failed(trial: dict[str, Any]) -> dict[str, str]:
    return {probe["name"]: probe["detail"] for probe in trial["probes"] if not probe["ok"]}


def works(field: Path, said: str, uid: int) -> bool:
    """It was somebody, wrote where it may and nowhere else, and did not see the records."""
    lines = said.splitlines()
    is_kept = not (field / "outside" / "made").exists() and "records" not in lines
    return lines[:2] == [str(uid), "mine"] and (field / "workspace" / "made").exists() and is_kept


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_for_an_ordinary_user_every_probe_passes_and_processes_are_that_user(backend: str, field: Path) -> None:
    answer = resident(field, backend)

    report, uid = answer["report"], ORDINARY if IS_ROOT else os.geteuid()
    assert (answer["uid"], report["uid"]) == (uid, None)
    [trial] = report["tried"]
    assert failed(trial) == {}
    assert len(trial["probes"]) == len(NAMES)
    assert works(field, answer["said"], uid)


@pytest.mark.parametrize("is_root", WHO.values(), ids=WHO)
def test_in_a_container_the_choice_is_landlock_and_every_probe_passes(is_root: bool, field: Path) -> None:
    answer = resident(field, "auto", is_root=is_root, container=True)

    report = answer["report"]
    refused, passed = report["tried"]
    assert (refused["backend"], refused["ok"], report["user_namespaces"]) == ("bwrap", False, False)
    assert "No permissions to create" in refused["said"]
    assert (report["backend"], passed["ok"], failed(passed)) == ("landlock", True, {})
    assert report["uid"] == (61_100 if is_root else None)
    assert works(field, answer["said"], report["uid"] or answer["uid"])


def test_in_a_container_its_own_filter_is_not_taken_for_that_of_the_walls(field: Path) -> None:
    answer = resident(field, "landlock", container=True, broken=True)

    [trial] = answer["report"]["tried"]
    assert {"privileges", "system_calls"} <= set(failed(trial))
    assert (answer["report"]["backend"], answer["said"]) == (None, None)
