"""The `asks` commands: what waits for a person, shown and answered in a terminal."""

import json
import os
import select
import sys
import termios
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from app.cli.options import Config, DataDir, KeyOption, Url, client, err, out, plainly
from app.core.rules import RuleScope
from app.mcp import elicitation_forms
from app.net.service_client import ServiceClient, ServiceProblem

Ask = dict[str, Any]
Said = dict[str, Any]

TYPES = "ask.opened,ask.answered,ask.expired"
CHOICE = "[a]llow once, [A]lways, [d]eny, [s]kip:"
REPLY = "a number or your own words (empty skips, - declines):"
FILL = "a value (empty leaves it out, - declines, s skips):"
VISIT = "[a]gree to open it, [d]ecline, [s]kip:"
SCOPES = {"": "session", "s": "session", "w": "workspace", "g": "global"}
PAGE = 500

app = typer.Typer(help="Asks: what waits for a person.")

Session = Annotated[str | None, typer.Option(help="Only asks of this session.")]


@app.callback(invoke_without_command=True)
def show_asks(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Ask for an answer to each, as they come.")] = False,
    session: Session = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --follow a line for each change.")] = False,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Show what waits for a person; with --follow, answer it here."""
    if context.invoked_subcommand is not None:
        return
    with plainly():
        service = client(url, key, data_dir, config_file)
        if not follow:
            _show(open_asks(service, session), as_json)
        elif as_json:
            _print_changes(service, session)
        else:
            Reviewer(service, session).work()


@app.command("answer")
def answer_ask(
    id: Annotated[str, typer.Argument(help="The ask's id.")],
    allow: Annotated[bool, typer.Option("--allow", help="Allow it this once.")] = False,
    always: Annotated[bool, typer.Option("--always", help="Allow it from now on.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Do not allow it.")] = False,
    agree: Annotated[bool, typer.Option("--agree", help="Agree to open its page, or to what its form has.")] = False,
    decline: Annotated[bool, typer.Option("--decline", help="Do not answer its questions.")] = False,
    say: Annotated[list[str] | None, typer.Option(help="Answer a question, as in ID=TEXT; may be repeated.")] = None,
    message: Annotated[str | None, typer.Option(help="What the model is told along with a no.")] = None,
    pattern: Annotated[str | None, typer.Option(help="With --always: what to allow instead.")] = None,
    scope: Annotated[RuleScope | None, typer.Option(help="With --always: where it counts.")] = None,
    url: Url = None,
    key: KeyOption = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Answer one ask."""
    if [allow, always, deny, agree, decline, bool(say)].count(True) != 1:
        raise typer.BadParameter("give one of --allow, --always, --deny, --agree, --decline and --say")
    said: Said = {"message": message, "rule": pattern and {"pattern": pattern}, "scope": scope and scope.value}
    if decline:
        said["action"] = "decline"
    elif say or agree:
        said["content"] = _content(say or [])
    else:
        said["decision"] = "deny" if deny else "allow_always" if always else "allow_once"
    with plainly():
        ended = answer(client(url, key, data_dir, config_file), id, said)
    err.print(f"[dim]{plain(id)}: {plain(outcome(ended))}[/]")


def open_asks(service: ServiceClient, session: str | None = None) -> list[Ask]:
    """All that are open, oldest first."""
    found: list[Ask] = []
    wanted = {"status": "open", "limit": PAGE} | ({"session": session} if session else {})
    while True:
        page = service.request("GET", "/v1/asks", **wanted)
        found += page["data"]
        if page["next_cursor"] is None:
            return found[::-1]
        wanted["cursor"] = page["next_cursor"]


def answer(service: ServiceClient, id: str, said: Said) -> Ask:
    given = {name: value for name, value in said.items() if value is not None}
    ended: Ask = service.request("POST", f"/v1/asks/{id}/answer", given)
    return ended


def wish(ask: Ask) -> str:
    """What is asked, in one line."""
    if ask["needs"]:
        return ", ".join(f"{need['permission']} {need['pattern']}" for need in ask["needs"])
    if ask["kind"] == "elicitation":
        shows = ask["metadata"]
        return " ".join(str(shows[name]) for name in ("server", "message", "url") if shows.get(name))
    return " / ".join(question.get("question", "") for question in ask["questions"])


def outcome(ask: Ask) -> str:
    """How an ask ended, and by whom."""
    given = ask["answer"]
    if given is None:
        return str(ask["reason"] or ask["status"])
    said = given["decision"] or given["action"] or "answered"
    return f"{said} by {given['principal'] or 'the rules'}"


def printable(text: str) -> str:
    """Text that models wrote, for a terminal: nothing in it moves the cursor or turns the line around."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def plain(text: str) -> str:
    """The same where colours are said in square brackets."""
    return escape(printable(text))


def _show(asks: list[Ask], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asks, indent=2, ensure_ascii=False))
        return
    table = Table("ask", "whose", "session", "tool", "wants", "until", box=None, header_style="bold")
    for ask in asks:
        row = (ask["id"], ask["principal"], ask["session"], ask["tool"], wish(ask), ask["expires_at"][:19])
        table.add_row(*(plain(cell) for cell in row))
    out.print(table)


def _print_changes(service: ServiceClient, session: str | None) -> None:
    """Each ask that is open, then each change of one, a line of JSON each."""
    seen: set[tuple[str, str]] = set()
    for news in _news(service, session):
        for ask in [news] if news else open_asks(service, session):
            if (ask["id"], ask["status"]) not in seen:
                seen.add((ask["id"], ask["status"]))
                typer.echo(json.dumps(ask))
                sys.stdout.flush()


def _news(service: ServiceClient, session: str | None) -> Iterator[Ask | None]:
    """Asks as they change, and None for each sign of life, when all that are open can be looked at."""
    wanted = {"types": TYPES} | ({"session": session} if session else {})
    for event in service.listen("/v1/events", **wanted):
        yield event.get("data") if event else None
    raise ServiceProblem("The service has ended the stream of events.")


def _content(said: list[str]) -> dict[str, str | list[str]]:
    """ID=TEXT, where an id that comes again makes a list."""
    content: dict[str, str | list[str]] = {}
    for one in said:
        id, is_given, text = one.partition("=")
        if not is_given:
            raise typer.BadParameter(f"{one} is not of the form ID=TEXT", param_hint="--say")
        before = content.get(id)
        content[id] = text if before is None else [*(before if isinstance(before, list) else [before]), text]
    return content


class Meanwhile(Exception):
    """The ask at hand has ended while its answer was being typed."""


class Skipped(Exception):
    """The person leaves the ask at hand to others."""


class Reviewer:
    """One person at one terminal: sees each open ask, answers it, and hears what others answer meanwhile."""

    def __init__(self, service: ServiceClient, session: str | None) -> None:
        self._service = service
        self._session = session
        self._news: SimpleQueue[Ask | ServiceProblem | None] = SimpleQueue()
        self._bell, self._cord = os.pipe()
        self._keyboard: int | None = sys.stdin.fileno()
        self._typed = b""
        self._seen: set[str] = set()
        self._open: dict[str, Ask] = {}
        self._current: str | None = None

    def work(self) -> None:
        """Until interrupted, or until the service ends."""
        threading.Thread(target=self._listen, daemon=True).start()
        err.print("[dim]waiting for asks; Ctrl-C ends this[/]")
        try:
            while True:
                while not self._open or self._is_ringing():
                    self._hear()
                self._review(self._open.pop(next(iter(self._open))))
        except KeyboardInterrupt:
            raise typer.Exit from None

    def _listen(self) -> None:
        """In a thread of its own: put news where the person's thread finds them, and ring."""
        try:
            for news in _news(self._service, self._session):
                self._tell(news)
        except ServiceProblem as problem:
            self._tell(problem)

    def _tell(self, news: Ask | ServiceProblem | None) -> None:
        self._news.put(news)
        os.write(self._cord, b".")

    def _is_ringing(self) -> bool:
        return bool(select.select([self._bell], [], [], 0)[0])

    def _hear(self) -> None:
        """Take in one piece of news; wait for it if need be."""
        os.read(self._bell, 1)
        news = self._news.get()
        if isinstance(news, ServiceProblem):
            raise news
        for ask in [news] if news else open_asks(self._service, self._session):
            if ask["status"] != "open":
                self._let_go(ask)
            elif ask["id"] not in self._seen:
                self._seen.add(ask["id"])
                self._open[ask["id"]] = ask

    def _let_go(self, ended: Ask) -> None:
        self._open.pop(ended["id"], None)
        if ended["id"] == self._current:
            raise Meanwhile(outcome(ended))

    def _review(self, ask: Ask) -> None:
        """Show an ask, and take answers to it until one counts."""
        self._present(ask)
        self._current = ask["id"]
        try:
            while self._keyboard is not None:
                said = self._say(ask)
                if self._send(ask, said):
                    return
        except Skipped:
            out.print("[dim]skipped[/]")
        except Meanwhile as ended:
            self._forget_typed()
            out.print(f"\n[yellow]ended meanwhile:[/] {plain(str(ended))}")
        finally:
            self._current = None

    def _present(self, ask: Ask) -> None:
        out.print(f"\n[bold]{plain(ask['tool'])}[/] wants an answer: {plain(wish(ask))}")
        out.print(f"[dim]{ask['id']}, of {plain(ask['principal'])}, session {plain(ask['session'])},", end=" ")
        out.print(f"[dim]until {ask['expires_at'][:19]}[/]")
        if ask["metadata"] and ask["kind"] != "elicitation":
            out.print(f"[dim]{plain(json.dumps(ask['metadata']))}[/]")

    def _send(self, ask: Ask, said: Said) -> bool:
        """Whether the ask is done with; one that is still open can be answered otherwise."""
        try:
            ended = answer(self._service, ask["id"], said)
        except ServiceProblem as problem:
            err.print(f"[red]error:[/] {plain(str(problem))}")
            return bool(self._service.request("GET", f"/v1/asks/{ask['id']}")["status"] != "open")
        out.print(f"[green]{plain(outcome(ended))}[/]")
        return True

    def _say(self, ask: Ask) -> Said:
        match ask["kind"], ask["metadata"].get("mode"):
            case "permission", _:
                return self._decide(ask)
            case "elicitation", "url":
                return self._visit()
            case "elicitation", _:
                return self._fill(ask["metadata"].get("requested_schema") or {})
        return self._reply(ask)

    def _visit(self) -> Said:
        """The page is the person's to open; here they only say whether they will."""
        while True:
            match self._line(VISIT):
                case "a":
                    return {"content": {}}
                case "d":
                    return {"action": "decline"}
                case "s":
                    raise Skipped

    def _fill(self, schema: dict[str, Any]) -> Said:
        content: dict[str, Any] = {}
        for field in elicitation_forms.lines(schema):
            needed = "" if field.is_required else " [dim](may be left out)[/]"
            out.print(f"[bold]{plain(field.title)}:[/] {plain(field.description or field.kind)}{needed}")
            for number, (_, label) in enumerate(field.options, 1):
                out.print(f"  {number}. {plain(label)}")
            if field.default is not None:
                out.print(f"  [dim]{plain(json.dumps(field.default))} when left out[/]")
            match self._line(FILL):
                case "s":
                    raise Skipped
                case "-":
                    return {"action": "decline", "message": self._line("why (may be empty):") or None}
                case given if given:
                    content[field.name] = elicitation_forms.typed(given, field)
        return {"content": content}

    def _decide(self, ask: Ask) -> Said:
        while True:
            match self._line(CHOICE):
                case "a":
                    return {"decision": "allow_once"}
                case "A":
                    return {"decision": "allow_always", "rule": self._edit(ask["always"]), "scope": self._scope()}
                case "d":
                    return {"decision": "deny", "message": self._line("why (may be empty):") or None}
                case "s":
                    raise Skipped

    def _edit(self, rules: list[dict[str, str]]) -> list[dict[str, str]]:
        edited = []
        for rule in rules:
            pattern = self._line(f"always allow {printable(rule['permission'])} ({printable(rule['pattern'])}):")
            edited.append({"permission": rule["permission"], "pattern": pattern or rule["pattern"]})
        return edited

    def _scope(self) -> str:
        while True:
            given = self._line("in this [s]ession, this [w]orkspace, or [g]lobally (s):")
            if given in SCOPES:
                return SCOPES[given]

    def _reply(self, ask: Ask) -> Said:
        content = {}
        for question in ask["questions"]:
            out.print(f"[bold]{plain(question['header'])}:[/] {plain(question['question'])}")
            for number, option in enumerate(question["options"], 1):
                out.print(f"  {number}. {plain(option['label'])}  [dim]{plain(option['description'] or '')}[/]")
            given = self._line(REPLY)
            if not given:
                raise Skipped
            if given == "-":
                return {"action": "decline", "message": self._line("why (may be empty):") or None}
            content[question["id"]] = self._chosen(given, question["options"])
        return {"content": content}

    def _chosen(self, given: str, options: list[dict[str, Any]]) -> str:
        """A number is the option it stands for, anything else is meant as it is."""
        if not (given.isdecimal() and 0 < int(given) <= len(options)):
            return given
        option = options[int(given) - 1]
        if not option["is_other"]:
            return str(option["label"])
        while not (words := self._line("in your own words:")):
            pass
        return words

    def _line(self, prompt: str) -> str:
        """What the person types, up to the end of the line. News that come meanwhile are heard."""
        out.print(prompt, markup=False, end=" ")
        out.file.flush()
        while b"\n" not in self._typed:
            if self._keyboard is None:
                raise Skipped
            ready, _, _ = select.select([self._keyboard, self._bell], [], [])
            if self._bell in ready:
                self._hear()
            elif data := os.read(self._keyboard, 4096):
                self._typed += data
            else:
                self._keyboard = None
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def _forget_typed(self) -> None:
        """What was meant for one ask is not taken for another."""
        if self._keyboard is not None and os.isatty(self._keyboard):
            termios.tcflush(self._keyboard, termios.TCIFLUSH)
            self._typed = b""
