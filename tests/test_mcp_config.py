"""MCP servers as others write them down: each client's file is read as it is, and what cannot be had is said."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from app import mcp_config
from app.config import Settings
from app.core.custom_tools import SecretHeader
from app.core.errors import Misconfigured
from app.core.mcp_servers import BearerAuth, HttpServer, SecretValue, StdioServer
from app.mcp_config import Configured, Finding

CLAUDE_DESKTOP = """{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "${HOME}/Desktop"]
    },
    "github": {
      "command": "docker",
      "args": ["run", "-i", "--rm", "-e", "GITHUB_PERSONAL_ACCESS_TOKEN", "ghcr.io/github/github-mcp-server"],
      "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_0123456789abcdefghijklmnopqrstuvwxyz"}
    }
  }
}
"""
CLAUDE_CODE = """{
  "mcpServers": {
    "api": {
      "type": "http",
      "url": "${API_BASE:-https://api.example.com}/mcp",
      "headers": {"Authorization": "Bearer ${API_TOKEN}"},
      "timeout": 600000
    },
    "asana": {"type": "sse", "url": "https://mcp.asana.example/sse"}
  }
}
"""
CURSOR = """{
  "mcpServers": {
    "local": {"type": "stdio", "command": "python", "args": ["${workspaceFolder}/server.py"], "env": {"PORT": 3000}},
    "remote": {"url": "http://localhost:3000/mcp", "headers": {"X-Api-Key": "${env:REMOTE_KEY}"}}
  }
}
"""
VS_CODE = """{
  // asked for once, and kept by the editor
  "inputs": [{"type": "promptString", "id": "perplexity-key", "password": true, "description": "API key"}],
  "servers": {
    "Perplexity": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "server-perplexity-ask"],
      "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}"},
    },
    /* a server of the "streamable" kind: https://not-a-comment.example */
    "fetch": {"type": "http", "url": "https://fetch.example.com/mcp", "gallery": true},
    "dotted": {"command": "node", "envFile": "${workspaceFolder}/.env", "dev": {"watch": "src/**/*.ts"},},
  },
}
"""
CLINE = """{
  "mcpServers": {
    "weather": {
      "command": "uvx",
      "args": ["weather"],
      "timeout": 60,
      "disabled": true,
      "autoApprove": ["get_forecast"],
      "alwaysAllow": ["get_alerts"],
      "disabledTools": ["set_weather"]
    },
    "stream": {"type": "streamableHttp", "url": "https://weather.example.com/mcp", "disabled": false}
  }
}
"""
WINDSURF = '{"mcpServers": {"figma": {"serverUrl": "https://figma.example.com/mcp", "disabledTools": ["export"]}}}'
GEMINI = """{
  "theme": "GitHub",
  "mcpServers": {
    "docs": {"httpUrl": "https://docs.example.com/mcp", "includeTools": ["search"], "trust": true, "timeout": 5000}
  }
}
"""
OPENCODE_ENTRY = {"type": "local", "command": ["npx", "-y", "server-x"], "environment": {"A": "b"}, "enabled": True}
CODEX_ENTRY = {
    "url": "https://figma.example.com/mcp",
    "bearer_token_env_var": "FIGMA_TOKEN",
    "http_headers": {"X-Region": "eu"},
    "enabled_tools": ["open"],
    "startup_timeout_sec": 20,
    "tool_timeout_sec": 45,
}


def written(folder: Path, text: str) -> Path:
    path = folder / "mcp.json"
    path.write_text(text)
    path.chmod(0o600)
    return path


def configured(folder: Path, text: str, environ: dict[str, str] | None = None, **settings: Any) -> Configured:
    return mcp_config.read(Settings(mcp_config=written(folder, text), **settings), environ or {})


def refused(folder: Path, text: str) -> str:
    with pytest.raises(Misconfigured) as error:
        configured(folder, text)
    return str(error.value)


def entry(**fields: Any) -> str:
    return json.dumps({"mcpServers": {"time": fields}})


def test_a_file_of_claude_desktop_is_read_as_it_is(tmp_path: Path) -> None:
    found = configured(tmp_path, CLAUDE_DESKTOP, {"HOME": "/home/ann"})

    assert found.servers == [
        StdioServer(
            name="filesystem",
            kind="stdio",
            command="npx",
            args=["-y", "@modelcontextprotocol/server-filesystem", "/home/ann/Desktop"],
        ),
        StdioServer(
            name="github",
            kind="stdio",
            command="docker",
            args=["run", "-i", "--rm", "-e", "GITHUB_PERSONAL_ACCESS_TOKEN", "ghcr.io/github/github-mcp-server"],
            env={"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_0123456789abcdefghijklmnopqrstuvwxyz"},
        ),
    ]
    assert found.plaintext_secrets == {"ghp_0123456789abcdefghijklmnopqrstuvwxyz"}
    assert (found.unusable, found.warnings, found.notes) == ({}, [], [])


def test_a_file_of_claude_code_is_read_with_its_variables(tmp_path: Path) -> None:
    found = configured(tmp_path, CLAUDE_CODE, {"API_TOKEN": "a-token-of-some-length"})

    api, asana = found.servers
    assert api == HttpServer(
        name="api",
        kind="http",
        url="https://api.example.com/mcp",
        headers={"Authorization": "Bearer a-token-of-some-length"},
        call_timeout=600,
    )
    assert (asana.kind, asana.enabled) == ("sse", True)
    assert found.plaintext_secrets == {"a-token-of-some-length"}
    assert found.notes == [f"{tmp_path}/mcp.json: the MCP server api: timeout 600000 is read as milliseconds."]


def test_a_file_of_cursor_knows_the_workspace_and_writes_numbers_out(tmp_path: Path) -> None:
    found = configured(tmp_path, CURSOR, {"REMOTE_KEY": "remote-key-of-some-length"}, workspace=tmp_path / "work")

    local, remote = found.servers
    assert isinstance(local, StdioServer)
    assert isinstance(remote, HttpServer)
    assert (local.args, local.env) == ([f"{tmp_path}/work/server.py"], {"PORT": "3000"})
    assert (remote.kind, remote.headers) == ("http", {"X-Api-Key": "remote-key-of-some-length"})


def test_a_file_of_vs_code_may_have_comments_and_commas_and_a_file_of_variables(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text('# keys\nDOTTED_TOKEN="the-token-of-the-file"\nexport LEVEL=debug\n\n')

    found = configured(tmp_path, VS_CODE, workspace=tmp_path)

    asked, dotted, fetch = found.servers
    assert (asked.name, asked.enabled) == ("Perplexity", False)
    assert "${input:perplexity-key} can only be filled in by the editor" in found.unusable["Perplexity"]
    assert isinstance(dotted, StdioServer)
    assert dotted.env == {"DOTTED_TOKEN": "the-token-of-the-file", "LEVEL": "debug"}
    assert found.plaintext_secrets == {"the-token-of-the-file"}
    assert isinstance(fetch, HttpServer)
    assert (fetch.kind, fetch.url) == ("http", "https://fetch.example.com/mcp")
    assert [note.rpartition(": ")[2] for note in found.notes] == ["gallery is not used here.", "dev is not used here."]


def test_vs_codes_own_settings_have_the_servers_one_level_deeper(tmp_path: Path) -> None:
    found = configured(
        tmp_path, '{"editor.fontSize": 12, "mcp": {"inputs": [], "servers": {"time": {"command": "x"}}}}'
    )

    assert [server.name for server in found.servers] == ["time"]


def test_what_is_for_anothers_window_is_left_out_and_told(tmp_path: Path) -> None:
    found = configured(tmp_path, CLINE)

    stream, weather = found.servers
    assert (stream.kind, stream.enabled) == ("http", True)
    assert (weather.enabled, weather.denied_tools, weather.call_timeout) == (False, ["set_weather"], 60)
    told = [note.rpartition(": ")[2] for note in found.notes]
    assert told == ["autoApprove is not used here.", "alwaysAllow is not used here."]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (WINDSURF, {"kind": "http", "url": "https://figma.example.com/mcp", "denied_tools": ["export"]}),
        (GEMINI, {"kind": "http", "allowed_tools": ["search"], "call_timeout": 5}),
        (entry(**OPENCODE_ENTRY), {"kind": "stdio", "command": "npx", "args": ["-y", "server-x"], "env": {"A": "b"}}),
        (
            entry(**CODEX_ENTRY),
            {
                "auth": BearerAuth(token="token-of-figma"),
                "headers": {"X-Region": "eu"},
                "allowed_tools": ["open"],
                "startup_timeout": 20,
                "call_timeout": 45,
            },
        ),
        (entry(url="https://a.example/v1/sse"), {"kind": "sse"}),
        (entry(url="https://a.example/mcp", transport="streamable-http"), {"kind": "http"}),
        (
            entry(command="a", tools=["*"], env={"DEBUG": True, "GONE": None}),
            {"allowed_tools": None, "env": {"DEBUG": "true"}},
        ),
    ],
    ids=["Windsurf", "Gemini", "OpenCode", "Codex", "url of an SSE server", "transport", "Copilot"],
)
def test_the_words_of_other_clients_are_understood(tmp_path: Path, text: str, fields: dict[str, Any]) -> None:
    [server] = configured(tmp_path, text, {"FIGMA_TOKEN": "token-of-figma"}).servers

    assert {name: getattr(server, name) for name in fields} == fields


def test_our_own_fields_are_taken_too_and_secrets_by_name(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "mcpServers": {
                "a": {
                    "command": "server-a",
                    "env": {"TOKEN": {"secret": "A_TOKEN"}},
                    "cwd": "/srv",
                    "walls": True,
                    "per_session": True,
                    "roots": "caller",
                    "startup_timeout": 5,
                    "queue": 0,
                    "era": "older",
                },
                "b": {
                    "url": "https://b.example/mcp",
                    "headers": {"X-Key": {"secret": "B_KEY"}},
                    "auth": {"type": "oauth", "scope": "read"},
                    "parallel": True,
                    "concurrency": 4,
                    "call_timeout": 1000,
                },
            }
        }
    )

    a, b = configured(tmp_path, text).servers

    assert isinstance(a, StdioServer)
    assert isinstance(b, HttpServer)
    assert a.env == {"TOKEN": SecretValue(secret="A_TOKEN")}
    assert (a.cwd, a.walls, a.per_session, a.roots, a.startup_timeout, a.queue) == ("/srv", True, True, "caller", 5, 0)
    assert (a.era, b.era) == ("older", "auto")
    assert b.headers == {"X-Key": SecretHeader(secret="B_KEY")}
    assert (b.auth and b.auth.type, b.parallel, b.concurrency, b.call_timeout) == ("oauth", True, 4, 1000)


def test_servers_stand_in_the_settings_as_well(tmp_path: Path) -> None:
    servers = {
        "time": {"command": "uvx", "args": ["mcp-server-time", "${ZONE:-UTC}"]},
        "off": {"url": "${NOT_SET}", "enabled": False},
    }

    found = mcp_config.read(Settings(mcp={"servers": servers}), {})

    off, time = found.servers
    assert isinstance(time, StdioServer)
    assert time.args == ["mcp-server-time", "UTC"]
    assert (off.enabled, found.unusable) == (False, {})


def test_a_name_of_both_places_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, entry(command="a"))

    with pytest.raises(Misconfigured, match=r"'time' is invalid: mcp.servers already has one called time"):
        mcp_config.read(Settings(mcp_config=path, mcp={"servers": {"time": {"command": "b"}}}))


@pytest.mark.parametrize(
    ("given", "name"), [("My Server", "My-Server"), ("@scope/pkg", "scope-pkg"), ("_x_", "x"), ("a.b-c_d", "a.b-c_d")]
)
def test_a_name_becomes_one_that_tools_can_be_called_after(tmp_path: Path, given: str, name: str) -> None:
    [server] = configured(tmp_path, json.dumps({"mcpServers": {given: {"command": "a"}}})).servers

    assert server.name == name


def test_two_names_that_become_one_are_refused(tmp_path: Path) -> None:
    text = json.dumps({"mcpServers": {"my server": {"command": "a"}, "my-server": {"command": "b"}}})

    assert "already has one called my-server" in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "line 1, column 2"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "'a' appears twice in one object"),
        ('{"mcpserver": {}}', 'one object {"mcpServers"'),
        ('{"mcpServers": {}, "servers": {}}', 'one object {"mcpServers"'),
        ('{"mcpServers": []}', 'one object {"mcpServers"'),
        ("[1]", 'one object {"mcpServers"'),
        ('{"mcpServers": {"a": {"command": "x", "timeout": NaN}}}', "NaN is not a number"),
        pytest.param("[" * 100_000, "nested too deep", id="deep"),
        ('{"mcpServers": {"a": "x"}}', "'a' is invalid: an object with a `command` or a `url` is needed"),
        ('{"mcpServers": {"a__b": {"command": "x"}}}', "two underscores in a row"),
        ('{"mcpServers": {"日本": {"command": "x"}}}', "a name needs 1 to 64 alphanumeric"),
        (entry(), "give either a `command` to start or a `url`"),
        (entry(command="a", url="https://a.example"), "give either a `command` to start or a `url`"),
        (entry(comand="a"), "comand is an unknown field"),
        (entry(command="a", type="sse"), "a command needs the kind stdio, not sse"),
        (entry(url="https://a.example", type="stdio"), "a url needs the kind http or sse"),
        (entry(url="https://a.example/sse", era="newer"), "era: a server of the kind sse only supports older"),
        (entry(command="a", era="2026-07-28"), "era: input should be 'auto', 'older' or 'newer'"),
        (entry(url="https://a.example", type="websocket"), "type: 'websocket' is not one of stdio"),
        (entry(command="a", args="b"), "args: input should be a valid list"),
        (entry(command="a", args=[1]), "args.0: input should be a valid string"),
        (entry(command="a", headers={"X": "y"}), "headers: extra inputs are not permitted"),
        (entry(command=""), "command: string should have at least 1 character"),
        (entry(command=[]), "command: a list needs a program"),
        (entry(command="a", disabled="yes"), "disabled: true or false is needed"),
        (entry(command="a", disabled=True, enabled=True), "enabled is given twice, with different values"),
        (entry(command="a", timeout=0), "call_timeout: input should be greater than 0"),
        (entry(command="a", env={"A=B": "c"}), "env: 'A=B' is not a valid variable name"),
        (entry(command="a\0"), "cannot contain NUL characters"),
        (entry(url="ftp://a.example"), "A URL that starts with http:// or https:// is needed"),
        (entry(url="https://ann:pass@a.example"), "A user name or password cannot stand in a URL"),
        (entry(url="https://a.example", headers={"Host": "b"}), "The header Host is written by the service itself"),
        (entry(url="https://a.example", headers={"X": "a\nb"}), "cannot hold line breaks"),
        (entry(url="https://a.example", auth={"type": "bearer"}), "auth: give either the `secret`"),
        (entry(url="https://a.example", auth={"type": "digest"}), "auth: input tag 'digest'"),
        (entry(command="a", envFile=3), "envFile: the path of a file is needed"),
    ],
)
def test_a_slip_of_the_pen_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    told = refused(tmp_path, text)

    assert sentence in told
    assert str(tmp_path / "mcp.json") in told
    assert "\n" not in told


def test_what_is_wrong_is_told_without_what_it_holds(tmp_path: Path) -> None:
    text = entry(
        url="https://a.example", headers={"Authorization": ["the-token-itself"]}, auth={"token": "another-token"}
    )

    assert "token-itself" not in refused(tmp_path, text)
    assert "another-token" not in refused(tmp_path, text)


def test_a_file_that_is_not_there_or_no_text_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(Misconfigured, match=r"nowhere.json cannot be read: No such file or directory"):
        mcp_config.read(Settings(mcp_config=tmp_path / "nowhere.json"))
    with pytest.raises(Misconfigured, match="binary cannot be read: it is not UTF-8"):
        mcp_config.read(Settings(mcp_config=tmp_path / "binary"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("${A}-${env:A}", "one-one"),
        ("${A:-x}${B:-two}${EMPTY:-three}${EMPTY}", "onetwothree"),
        ("${userHome}${/}x", f"{Path.home()}/x"),
        ("sh -c 'echo ${A%.txt} $A $(pwd)'", "sh -c 'echo ${A%.txt} $A $(pwd)'"),
        ("${B:-https://a.example:8080/}", "https://a.example:8080/"),
    ],
)
def test_variables_are_filled_in_and_scripts_left_alone(tmp_path: Path, given: str, meant: str) -> None:
    [server] = configured(tmp_path, entry(command="x", args=[given]), {"A": "one", "EMPTY": ""}).servers

    assert isinstance(server, StdioServer)
    assert server.args == [meant]


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "${NOPE}"},
        {"command": "x", "args": ["a", "${env:NOPE}"]},
        {"command": "x", "env": {"A": "${NOPE}"}},
        {"command": "x", "cwd": "${NOPE}/a"},
        {"command": "x", "envFile": "${NOPE}/.env"},
        {"url": "https://${NOPE}/mcp"},
        {"url": "https://a.example", "headers": {"X": "${NOPE}"}},
    ],
)
def test_a_variable_that_is_not_set_costs_only_its_server(tmp_path: Path, fields: dict[str, Any]) -> None:
    text = json.dumps({"mcpServers": {"needy": fields, "other": {"command": "y"}}})

    found = configured(tmp_path, text)

    assert found.unusable == {"needy": "the variable NOPE is not set."}
    assert [(server.name, server.enabled) for server in found.servers] == [("needy", False), ("other", True)]


def test_a_file_with_secrets_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, CLAUDE_DESKTOP)
    path.chmod(0o644)
    found = mcp_config.read(Settings(mcp_config=path), {"HOME": "/"})
    path.chmod(0o600)
    private = mcp_config.read(Settings(mcp_config=path), {"HOME": "/"})
    harmless = written(tmp_path, CLAUDE_CODE)
    harmless.chmod(0o644)
    expanded = mcp_config.read(Settings(mcp_config=harmless), {"API_TOKEN": "comes-from-elsewhere"})

    assert found.warnings == [f"{path} contains secrets in plain text, and other users can read it: chmod 600 it."]
    assert (private.warnings, expanded.warnings) == ([], [])


@pytest.mark.parametrize(
    ("fields", "clear"),
    [
        (
            {"command": "x", "env": {"DB_PASSWORD": "hunter2", "KEY": "/run/secret", "USE_TOKEN": "true"}},
            {"hunter2"},
        ),
        ({"command": "x", "args": ["--api-key", "abc-123", "--token=def-456", "--verbose"]}, {"abc-123", "def-456"}),
        ({"command": "mcp-remote", "args": ["--header", "Authorization: Bearer ghi-789"]}, {"ghi-789"}),
        ({"command": "x", "args": ["sk-proj-0123456789abcdef"]}, {"sk-proj-0123456789abcdef"}),
        ({"url": "https://a.example/mcp?api_key=jkl-012&page=2"}, {"jkl-012"}),
        ({"url": "https://a.example", "headers": {"Authorization": "Token mno-345", "X-Team": "blue"}}, {"mno-345"}),
        ({"url": "https://a.example", "auth": {"type": "bearer", "token": "pqr-678"}}, {"pqr-678"}),
    ],
)
def test_what_looks_like_a_secret_is_known_to_be_redacted(
    tmp_path: Path, fields: dict[str, Any], clear: set[str]
) -> None:
    assert configured(tmp_path, entry(**fields)).plaintext_secrets == clear


def test_the_doctor_tells_what_is_missing_for_each_server(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\n")
    (tmp_path / "here").chmod(0o755)
    servers = {
        "here": {"command": str(tmp_path / "here")},
        "relative": {"command": "./here", "cwd": str(tmp_path)},
        "onpath": {"command": "here", "env": {"PATH": str(tmp_path)}},
        "gone": {"command": "no-such-program-anywhere"},
        "nowhere": {"command": "sh", "cwd": "/no/such/folder"},
        "needy": {"command": "${NOPE}"},
        "locked": {"url": "https://a.example", "auth": {"type": "bearer", "secret": "A_TOKEN"}},
        "open": {"url": "https://a.example", "headers": {"X": {"secret": "KNOWN"}}},
        "off": {"command": "no-such-program-anywhere", "disabled": True},
    }
    settings = Settings(mcp={"servers": servers})

    found = {one.name.removeprefix("mcp server "): one for one in mcp_config.examine(settings, {"KNOWN"}, os.environ)}

    assert {name: one.message for name, one in found.items() if one.level == "warning"} == {
        "gone": "The program no-such-program-anywhere does not exist or is not executable.",
        "nowhere": "Its working directory /no/such/folder does not exist.",
        "needy": "It is not started: the variable NOPE is not set.",
        "locked": "There is no shared secret A_TOKEN, and none of the admin.",
    }
    assert found["mcp servers"].message.startswith("9 can be read: gone, here, locked")


def test_the_doctor_tells_of_a_file_that_keeps_the_service_from_starting(tmp_path: Path) -> None:
    settings = Settings(mcp_config=written(tmp_path, entry(comand="x")))

    [found] = mcp_config.examine(settings, set())

    assert isinstance(found, Finding)
    assert found.level == "failure"
    assert "comand is an unknown field" in found.message


def test_without_servers_there_is_nothing_to_say() -> None:
    assert list(mcp_config.examine(Settings(), set())) == []
    assert mcp_config.read(Settings()).servers == []
