"""`toolcrib asks`: what waits for a person, seen and answered in a real terminal."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ask_calls import QUESTIONS
from tests.support.cli import HANG, environment, key_of, serving, start, stop, toolcrib, url_of
from tests.support.terminals import Terminal, at_terminal

FOLLOW = ("asks", "--follow")
CHOICE = "[s]kip: "
REPLY = "- declines): "
FILL = "s skips): "
TALKING = str(Path(__file__).parent.parent / "mcp" / "progress_server.py")


class Office:
    """A running service, and an agent who calls tools there."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.agent = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key_of(folder)}"}, trust_env=False, timeout=HANG
        )

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Have a call made that has to wait for a person."""
        call: str = self.agent.post("/v1/calls?wait=0", json={"tool": tool, "arguments": arguments}).json()["id"]
        return call

    def read(self, path: str = ".env") -> str:
        return self.call("read_file", {"file_path": path})

    def question(self) -> str:
        return self.call("request_user_input", {"questions": QUESTIONS})

    def await_server(self) -> None:
        while self.agent.get("/v1/mcp/servers/talk").json()["state"] != "connected":
            time.sleep(0.05)

    def talk(self, tool: str) -> str:
        """Have an MCP server called that asks something meanwhile."""
        return self.call(f"mcp__talk__{tool}", {})

    def heard(self, call: str) -> dict[str, Any]:
        """What the server was answered."""
        answer: dict[str, Any] = json.loads(self.ended(call)["result"]["output"])
        return answer

    def ask_of(self, call: str) -> dict[str, Any]:
        """The newest ask of a call, as soon as there is one."""
        while not (asks := self.agent.get("/v1/asks", params={"call": call}).json()["data"]):
            pass
        ask: dict[str, Any] = asks[0]
        return ask

    def ended(self, call: str) -> dict[str, Any]:
        view: dict[str, Any] = self.agent.get(f"/v1/calls/{call}?wait={HANG}").json()
        assert view["ended_at"] is not None
        return view

    def error(self, call: str) -> dict[str, Any]:
        error: dict[str, Any] = self.ended(call)["error"]
        return error

    def rules(self) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = self.agent.get("/v1/rules").json()["data"]
        return rules

    def clear(self) -> None:
        """Nothing waits, and no rule stays behind."""
        for ask in self.agent.get("/v1/asks?status=open").json()["data"]:
            self.agent.post(f"/v1/calls/{ask['call']}/cancel")
        for rule in self.rules():
            self.agent.delete(f"/v1/rules/{rule['id']}")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    talk = {"command": sys.executable, "args": ["-I", "-S", TALKING], "parallel": True}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"talk": talk}}))
    with serving(folder, "--mcp-config", "mcp.json") as announced:
        workspace = folder / ".toolcrib" / "workspace"
        (workspace / ".env").write_text("A=1\n")
        (workspace / "deploy").mkdir()
        (workspace / "deploy" / ".env").write_text("B=2\n")
        office = Office(folder, url_of(announced))
        office.await_server()
        yield office
        office.clear()
        office.agent.close()


@pytest.fixture
def office(opened: Office) -> Iterator[Office]:
    yield opened
    opened.clear()


@pytest.fixture
def terminal(office: Office) -> Iterator[Terminal]:
    """Somebody who follows the asks of the office."""
    with at_terminal(office.folder, *FOLLOW) as terminal:
        yield terminal


def test_what_is_open_is_listed_as_a_table_or_as_json(office: Office) -> None:
    asks = [office.ask_of(office.read()), office.ask_of(office.question())]

    table = toolcrib(office.folder, "asks").stdout.splitlines()
    listed = toolcrib(office.folder, "asks", "--json")
    elsewhere = toolcrib(office.folder, "asks", "--json", "--session", "elsewhere")

    assert table[0].split() == ["ask", "principal", "session", "tool", "needs", "until"]
    assert table[1].split() == [asks[0]["id"], "admin", "default", "read_file", "read", ".env", table[1].split()[-1]]
    assert "Which one? / Why that one?" in table[2]
    assert json.loads(listed.stdout) == asks
    assert json.loads(elsewhere.stdout) == []


def test_a_script_allows_denies_and_hears_that_it_came_too_late(office: Office) -> None:
    allowed, denied = office.read(), office.read()
    first, second = office.ask_of(allowed)["id"], office.ask_of(denied)["id"]

    yes = toolcrib(office.folder, "asks", "answer", first, "--allow")
    no = toolcrib(office.folder, "asks", "answer", second, "--deny", "--message", "not that one")
    late = toolcrib(office.folder, "asks", "answer", second, "--allow")

    assert (yes.returncode, yes.stderr.strip()) == (0, f"{first}: allow_once by admin")
    assert (no.returncode, no.stderr.strip()) == (0, f"{second}: deny by admin")
    assert (late.returncode, late.stderr.strip()) == (
        1,
        f"error: The ask {second} was answered already: deny by admin.",
    )
    assert office.ended(allowed)["result"]["output"] == "L1: A=1"
    assert office.error(denied)["message"] == "The person did not allow read .env: not that one"


def test_a_script_allows_for_ever_what_it_names(office: Office) -> None:
    call = office.read("deploy/.env")

    toolcrib(
        office.folder, "asks", "answer", office.ask_of(call)["id"], "--always", "--pattern", "deploy/*", "--scope",
        "global",
    )  # fmt: skip

    assert office.ended(call)["status"] == "completed"
    [rule] = office.rules()
    assert (rule["permission"], rule["pattern"], rule["action"], rule["scope"]) == (
        "read",
        "deploy/*",
        "allow",
        "global",
    )


def test_a_script_answers_questions_or_declines(office: Office) -> None:
    answered, declined = office.question(), office.question()

    said = ("--say", "colour=Red", "--say", "why=warm", "--say", "why=x=y")
    toolcrib(office.folder, "asks", "answer", office.ask_of(answered)["id"], *said)
    toolcrib(office.folder, "asks", "answer", office.ask_of(declined)["id"], "--decline")

    assert office.ended(answered)["result"]["structured"] == {"answers": {"colour": "Red", "why": ["warm", "x=y"]}}
    assert office.error(declined)["code"] == "Declined"


def test_a_script_fills_in_what_servers_want_or_agrees(office: Office) -> None:
    def heard(tool: str, *said: str) -> dict[str, Any]:
        call = office.talk(tool)
        toolcrib(office.folder, "asks", "answer", office.ask_of(call)["id"], *said)
        return office.heard(call)

    said = ("--say", "name=Ada", "--say", "age=36", "--say", "tags=a", "--say", "tags=b")
    assert heard("ask", *said) == {"action": "accept", "content": {"name": "Ada", "age": 36, "tags": ["a", "b"]}}
    assert heard("page", "--agree") == {"action": "accept"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "use one of --allow"),
        (("--allow", "--deny"), "use one of --allow"),
        (("--say", "Red"), "not of the form ID=TEXT"),
    ],
)
def test_a_script_that_says_nothing_clear_is_told_so(tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    told = toolcrib(tmp_path, "asks", "answer", "ask_1", *options)

    assert told.returncode == 2
    assert sentence in told.stderr


def test_a_person_allows_denies_and_skips_as_asks_come(office: Office, terminal: Terminal) -> None:
    terminal.until("waiting for asks")
    first = office.read()
    shown = terminal.until(CHOICE)
    terminal.type("what?\n")
    terminal.until(CHOICE)
    terminal.type("a\n")
    terminal.until("allow_once by admin")
    second = office.read()
    terminal.until(CHOICE)
    terminal.type("d\n")
    terminal.until("why (may be empty): ")
    terminal.type("mine\n")
    terminal.until("deny by admin")
    third = office.read()
    terminal.until(CHOICE)
    terminal.type("s\n")
    terminal.until("skipped")

    assert "read_file wants an answer: read .env" in shown
    assert office.ended(first)["status"] == "completed"
    assert office.error(second)["message"].endswith(": mine")
    assert office.ask_of(third)["status"] == "open"
    assert terminal.interrupt() == 0


def test_a_person_edits_what_is_always_allowed_and_that_settles_the_next_one(
    office: Office, terminal: Terminal
) -> None:
    terminal.until("waiting for asks")
    first = office.read()
    terminal.until(CHOICE)
    second = office.read("deploy/.env")
    office.ask_of(second)
    terminal.type("A\n")
    terminal.until("always allow read (.env): ")
    terminal.type("*.env\n")
    terminal.until("[g]lobally (s): ")
    terminal.type("x\n")
    terminal.until("[g]lobally (s): ")
    terminal.type("w\n")
    terminal.until("allow_always by admin")

    assert [office.ended(call)["status"] for call in (first, second)] == ["completed"] * 2
    [rule] = office.rules()
    assert (rule["pattern"], rule["scope"], rule["workspace"]) == ("*.env", "workspace", "default")
    office.question()
    terminal.until(REPLY)  # nobody is asked about the second one any more


def test_a_person_chooses_by_number_says_more_or_declines(office: Office, terminal: Terminal) -> None:
    terminal.until("waiting for asks")
    first = office.question()
    shown = terminal.until(REPLY)
    terminal.type("2\n")
    terminal.until(REPLY)
    terminal.type("because\n")
    terminal.until("answered by admin")
    second = office.question()
    terminal.until(REPLY)
    terminal.type("3\n")
    terminal.until("in your own words: ")
    terminal.type("Green\n")
    terminal.until(REPLY)
    terminal.type("7\n")
    terminal.until("answered by admin")
    third = office.question()
    terminal.until(REPLY)
    terminal.type("-\n")
    terminal.until("why (may be empty): ")
    terminal.type("\n")
    terminal.until("decline by admin")

    assert "Colour: Which one?" in shown
    assert [line.strip()[:8].strip() for line in shown.splitlines()[-4:-1]] == ["1. Red", "2. Blue", "3. Other"]
    answers = [office.ended(call)["result"]["structured"]["answers"] for call in (first, second)]
    assert answers == [{"colour": "Blue", "why": "because"}, {"colour": "Green", "why": "7"}]
    assert office.error(third)["code"] == "Declined"


def test_a_person_fills_in_what_a_server_wants_line_by_line(office: Office, terminal: Terminal) -> None:
    terminal.until("waiting for asks")
    first = office.talk("ask")
    shown = terminal.until(FILL)
    for typed in ("Ada", "old", "1,2"):
        terminal.type(f"{typed}\n")
        if typed != "1,2":
            shown += terminal.until(FILL)
    terminal.until("age must be a whole number")
    for typed in ("Ada", "", ""):
        terminal.until(FILL)
        terminal.type(f"{typed}\n")
    terminal.until("answered by admin")
    second = office.talk("page")
    page = terminal.until("[s]kip: ")
    terminal.type("a\n")
    terminal.until("answered by admin")

    assert "talk Who?" in shown
    assert "Name: string" in shown
    assert "1. a" in shown
    assert office.heard(first) == {"action": "accept", "content": {"name": "Ada", "tags": ["c"]}}
    assert "talk Pay. https://example.com/pay" in page
    assert office.heard(second) == {"action": "accept"}


def test_a_person_hears_when_somebody_else_was_faster_and_what_was_typed_is_not_taken_for_the_next(
    office: Office, terminal: Terminal
) -> None:
    first = office.read()
    terminal.until(CHOICE)
    second = office.read("deploy/.env")
    office.ask_of(second)
    terminal.type("a")  # and no Enter yet
    office.agent.post(f"/v1/asks/{office.ask_of(first)['id']}/answer", json={"decision": "deny"})
    terminal.until("ended meanwhile: deny by admin")
    terminal.until("read deploy/.env")
    terminal.until(CHOICE)
    terminal.type("\n")
    terminal.until(CHOICE)
    terminal.type("d\n\n")
    terminal.until("deny by admin")

    assert [office.error(call)["code"] for call in (first, second)] == ["PermissionDenied"] * 2


def test_an_answer_that_goes_too_far_can_be_given_again(office: Office) -> None:
    body = {"principal": "admin", "scopes": ["asks:answer"]}
    token = office.agent.post("/v1/keys", json=body).json()["token"]
    call = office.read()
    with at_terminal(office.folder, *FOLLOW, "--key", token) as terminal:
        terminal.until(CHOICE)
        terminal.type("A\n\n\n")
        terminal.until("needs a key with rules:write")
        terminal.until(CHOICE)
        terminal.type("a\n")
        terminal.until("allow_once by admin")

    assert office.ended(call)["status"] == "completed"


def test_what_a_model_wrote_cannot_play_with_the_terminal(office: Office, terminal: Terminal) -> None:
    office.read("\x1b[2K\u202e[red]\n.env")

    assert r"read \x1b[2K\u202e[red]\n.env" in terminal.until(CHOICE)


def test_where_nobody_can_type_asks_are_only_shown(office: Office) -> None:
    call = office.read()
    ask = office.ask_of(call)
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "app", *FOLLOW],
        cwd=office.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        try:
            assert following.stdout is not None
            assert any(ask["id"] in line for line in following.stdout)
            other = office.ask_of(office.question())["id"]
            assert any(other in line for line in following.stdout)
        finally:
            following.kill()

    assert office.ask_of(call) == ask


def test_a_program_follows_each_ask_as_a_line_of_json(office: Office) -> None:
    call = office.read()
    ask = office.ask_of(call)
    with subprocess.Popen(
        [sys.executable, "-m", "app", *FOLLOW, "--json"],
        cwd=office.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        try:
            assert following.stdout is not None
            first = json.loads(following.stdout.readline())
            office.agent.post(f"/v1/calls/{call}/cancel")
            second = json.loads(following.stdout.readline())
        finally:
            following.kill()

    assert (first, second["id"], second["reason"]) == (ask, ask["id"], "The call has ended.")


def test_following_ends_with_the_service(tmp_path: Path) -> None:
    service, _ = start(tmp_path)
    with at_terminal(tmp_path, *FOLLOW) as terminal:
        terminal.until("waiting for asks")
        assert stop(service) == 0
        terminal.until("error: ")
        assert terminal.ended() == 1
