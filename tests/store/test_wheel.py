"""An installed service is not a checkout: what it needs must be in the wheel."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = ["app", "migrations", "pyproject.toml", "README.md", "LICENSE", ".gitignore"]
UPGRADE = """
import json, sys
from pathlib import Path
import app
from app.store import db, migrate
url = db.database_url(Path(sys.argv[1]), None)
done = [migrate.upgrade(url), migrate.upgrade(url)]
print(json.dumps({"app": app.__file__, "from": str(migrate.directory()), "done": done, "at": migrate.current(url)}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because others work in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    (copy / "README.md").touch()
    (copy / "migrations/__pycache__").mkdir()
    (copy / "migrations/__pycache__/env.cpython-311.pyc").touch()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"], cwd=copy, check=True)
    (built,) = (copy / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_the_migrations_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    inside = {name.removeprefix("app/_migrations/") for name in names if name.startswith("app/_migrations/")}
    here = {str(path.relative_to(ROOT / "migrations")) for path in (ROOT / "migrations").rglob("*") if path.is_file()}
    assert inside == {name for name in here if "__pycache__" not in name}
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"app", "toolcrib"}
    assert "app/py.typed" in names
    assert not [name for name in names if name.endswith(".pyc")]


def test_an_installed_service_outside_the_checkout_migrates_itself(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)

    ran = subprocess.run(
        [sys.executable, "-c", UPGRADE, str(tmp_path)],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert json.loads(ran.stdout) == {
        "app": str(site / "app/__init__.py"),
        "from": str(site / "app/_migrations"),
        "done": [True, False],
        "at": max(path.name for path in (ROOT / "migrations/versions").glob("[0-9]*.py")).partition("_")[0],
    }
