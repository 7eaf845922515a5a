"""`toolcrib mcp`, as a person would use it: servers added, listed, connected anew, looked at, removed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from tests.support.cli import serving, toolcrib

SHOP = Path(__file__).parent.parent / "mcp" / "catalog_server.py"
SETTINGS = '[mcp]\nstdio_over_rest = true\n[secrets]\nDISK = { env = "PATH" }\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a service runs that has a server of a file, and may be given more."""
    folder = tmp_path_factory.mktemp("crib")
    (folder / "toolcrib.toml").write_text(SETTINGS)
    entry = {"command": sys.executable, "args": [str(SHOP)], "env": {"SHOP_GREETING": "we are \x1b[31mopen"}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"corner shop": entry}}))
    with serving(folder, "--mcp-config", "mcp.json"):
        yield folder


def mcp(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    done = toolcrib(folder, "mcp", *args)
    assert "Traceback" not in done.stderr
    return done


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    return {view["name"]: view for view in json.loads(mcp(folder, "list", "--json").stdout)}


def test_the_servers_of_a_file_are_there_and_their_words_do_not_paint_the_terminal(folder: Path) -> None:
    anew = mcp(folder, "reconnect", "corner-shop")
    shown = mcp(folder, "list").stdout.splitlines()
    log = mcp(folder, "log", "corner-shop")

    assert (anew.returncode, anew.stdout, anew.stderr) == (0, "", "corner-shop: connected 2 tools\n")
    assert shown[0].split() == ["server", "owner", "kind", "state", "tools", "source", "info"]
    row = ["corner-shop", "global", "stdio", "connected", "2", "config", "shop", "1.0"]
    assert row in [line.split() for line in shown]
    assert "we are \\x1b[31mopen" in log.stdout


def test_a_program_is_added_with_all_that_stands_behind_two_dashes_and_removed(folder: Path) -> None:
    options = ["--env", "A=b=c", "--env-secret", "B=DISK", "--cwd", str(folder), "--per-session", "--parallel"]
    added = mcp(folder, "add", "own", *options, "--own", "--", sys.executable, str(SHOP), "--url", "x")
    view = listed(folder)["own"]
    again = mcp(folder, "add", "own", "--own", "--", sys.executable, str(SHOP))
    removed = mcp(folder, "remove", "own", "--own")
    gone = mcp(folder, "remove", "own", "--own")

    assert added.returncode == removed.returncode == 0, added.stderr
    definition = view["definition"]
    assert (definition["command"], definition["args"]) == (sys.executable, [str(SHOP), "--url", "x"])
    assert definition["env"] == {"A": "b=c", "B": {"secret": "DISK"}}
    assert (definition["cwd"], view["per_session"], definition["parallel"]) == (str(folder), True, True)
    assert view["owner"] == "admin"
    assert (again.returncode, again.stderr) == (1, "error: own is the name of a server already.\n")
    assert removed.stderr == "own is removed\n"
    assert (gone.returncode, gone.stderr) == (1, "error: There is no MCP server own of yours.\n")


def test_a_server_elsewhere_that_does_not_answer_is_added_and_said_so(folder: Path) -> None:
    options = ["--header", "X-Team: blue", "--header", "X-Time: 12:00", "--bearer-secret", "DOCS", "--sse"]
    added = mcp(folder, "add", "docs", "--url", "https://docs.invalid/sse", *options)
    view = listed(folder)["docs"]

    assert added.returncode == 1
    assert added.stderr.startswith("docs: failed ")
    assert view["definition"]["headers"] == {"X-Team": "blue", "X-Time": "12:00"}
    assert (view["kind"], view["definition"]["auth"]["secret"]) == ("sse", "DOCS")


@pytest.mark.parametrize(
    "args",
    [
        ["docs"],
        ["docs", "--url", "https://a.invalid", "--", "program"],
        ["docs", "--url", "https://a.invalid", "--header", "no colon"],
        ["docs", "--url", "https://a.invalid", "--bearer-secret", "A", "--oauth"],
        ["docs", "--env", "no equals sign", "--", "program"],
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_is_asked(args: list[str]) -> None:
    assert CliRunner().invoke(app, ["mcp", "add", *args]).exit_code == 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["add", "a", "--url", "ftp://a.invalid"], "A URL that starts with http:// or https:// is needed."),
        (["log", "nothing"], "There is no MCP server nothing."),
        (["auth", "corner-shop"], "corner-shop is a stdio server, which has no OAuth authorization."),
    ],
)
def test_what_the_service_refuses_is_one_sentence(folder: Path, args: list[str], sentence: str) -> None:
    refused = mcp(folder, *args)

    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert sentence in refused.stderr


def test_a_file_that_cannot_be_followed_keeps_the_service_from_starting(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"time": {"comand": "x"}}}')

    refused = toolcrib(tmp_path, "serve", "--port", "0", "--mcp-config", "mcp.json")
    looked = toolcrib(tmp_path, "doctor", "--json", TOOLCRIB_MCP_CONFIG="mcp.json")

    wrong = "comand is an unknown field; remove or correct it."
    sentence = f"mcp.json: the MCP server 'time' is invalid: {wrong}"
    assert (refused.returncode, looked.returncode) == (1, 1)
    assert refused.stderr.splitlines()[-1] == f"error: {sentence}"
    [found] = [one for one in json.loads(looked.stdout)["findings"] if one["name"] == "mcp servers"]
    assert (found["level"], found["message"]) == ("failure", sentence)
