"""The `asks` commands: show and answer what waits for a person."""

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

from app.cli.options import Target, err, out, user_errors, with_target
from app.core.rules import RuleScope
from app.mcp import elicitation_forms
from app.net.service_client import ServiceClient, ServiceProblem

Ask = dict[str, Any]
Answer = dict[str, Any]

TYPES = "ask.opened,ask.answered,ask.expired"
PERMISSION_PROMPT = "[a]llow once, [A]lways, [d]eny, [s]kip:"
QUESTION_PROMPT = "a number or your own words (empty skips, - declines):"
FIELD_PROMPT = "a value (empty leaves it out, - declines, s skips):"
URL_PROMPT = "[a]gree to open it, [d]ecline, [s]kip:"
SCOPES = {"": "session", "s": "session", "w": "workspace", "g": "global"}
PAGE_SIZE = 500

app = typer.Typer(help="Asks: questions that wait for a person.")

Session = Annotated[str | None, typer.Option(help="Only asks of this session.")]


@app.callback(invoke_without_command=True)
@with_target()
def show_asks(
    target: Target,
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Prompt for an answer to each ask.")] = False,
    session: Session = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --follow a line for each change.")] = False,
) -> None:
    """Show the open asks; with --follow, answer them here."""
    if context.invoked_subcommand is not None:
        return
    with user_errors():
        service = target.client()
        if not follow:
            _print_asks(open_asks(service, session), as_json)
        elif as_json:
            _print_changes(service, session)
        else:
            Reviewer(service, session).run()


@app.command("answer")
@with_target()
def answer_ask(
    target: Target,
    id: Annotated[str, typer.Argument(help="The ask's id.")],
    allow: Annotated[bool, typer.Option("--allow", help="Allow it this once.")] = False,
    always: Annotated[bool, typer.Option("--always", help="Allow it from now on.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Do not allow it.")] = False,
    agree: Annotated[bool, typer.Option("--agree", help="Agree to open its URL, or accept the form as it is.")] = False,
    decline: Annotated[bool, typer.Option("--decline", help="Do not answer its questions.")] = False,
    say: Annotated[list[str] | None, typer.Option(help="Answer a question, as ID=TEXT; repeatable.")] = None,
    message: Annotated[str | None, typer.Option(help="Message for the model with a denial.")] = None,
    pattern: Annotated[str | None, typer.Option(help="With --always: what to allow instead.")] = None,
    scope: Annotated[RuleScope | None, typer.Option(help="With --always: where the rule applies.")] = None,
) -> None:
    """Answer one ask."""
    if [allow, always, deny, agree, decline, bool(say)].count(True) != 1:
        raise typer.BadParameter("use one of --allow, --always, --deny, --agree, --decline and --say")
    body: Answer = {"message": message, "rule": pattern and {"pattern": pattern}, "scope": scope and scope.value}
    if decline:
        body["action"] = "decline"
    elif say or agree:
        body["content"] = _content(say or [])
    else:
        body["decision"] = "deny" if deny else "allow_always" if always else "allow_once"
    with user_errors():
        ended = answer(target.client(), id, body)
    err.print(f"[dim]{escaped(id)}: {escaped(outcome(ended))}[/]")


def open_asks(service: ServiceClient, session: str | None = None) -> list[Ask]:
    """All open asks, oldest first."""
    asks: list[Ask] = []
    params = {"status": "open", "limit": PAGE_SIZE} | ({"session": session} if session else {})
    while True:
        page = service.request("GET", "/v1/asks", **params)
        asks += page["data"]
        if page["next_cursor"] is None:
            return asks[::-1]
        params["cursor"] = page["next_cursor"]


def answer(service: ServiceClient, id: str, body: Answer) -> Ask:
    fields = {name: value for name, value in body.items() if value is not None}
    ended: Ask = service.request("POST", f"/v1/asks/{id}/answer", fields)
    return ended


def summary(ask: Ask) -> str:
    """What the ask is about, in one line."""
    if ask["needs"]:
        return ", ".join(f"{need['permission']} {need['pattern']}" for need in ask["needs"])
    if ask["kind"] == "elicitation":
        metadata = ask["metadata"]
        return " ".join(str(metadata[name]) for name in ("server", "message", "url") if metadata.get(name))
    return " / ".join(question.get("question", "") for question in ask["questions"])


def outcome(ask: Ask) -> str:
    """How an ask ended, and who answered it."""
    answered = ask["answer"]
    if answered is None:
        return str(ask["reason"] or ask["status"])
    result = answered["decision"] or answered["action"] or "answered"
    return f"{result} by {answered['principal'] or 'the rules'}"


def printable(text: str) -> str:
    """Escape control and bidi characters in text of models and MCP servers."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def escaped(text: str) -> str:
    """Printable text for output with rich markup."""
    return escape(printable(text))


def _print_asks(asks: list[Ask], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asks, indent=2, ensure_ascii=False))
        return
    table = Table("ask", "principal", "session", "tool", "needs", "until", box=None, header_style="bold")
    for ask in asks:
        row = (ask["id"], ask["principal"], ask["session"], ask["tool"], summary(ask), ask["expires_at"][:19])
        table.add_row(*(escaped(cell) for cell in row))
    out.print(table)


def _print_changes(service: ServiceClient, session: str | None) -> None:
    """Print each open ask, then each change, as a line of JSON."""
    seen: set[tuple[str, str]] = set()
    for change in _changes(service, session):
        for ask in [change] if change else open_asks(service, session):
            if (ask["id"], ask["status"]) not in seen:
                seen.add((ask["id"], ask["status"]))
                typer.echo(json.dumps(ask))
                sys.stdout.flush()


def _changes(service: ServiceClient, session: str | None) -> Iterator[Ask | None]:
    """Asks as they change, and None for each heartbeat, when the open asks can be listed."""
    params = {"types": TYPES} | ({"session": session} if session else {})
    for event in service.listen("/v1/events", **params):
        yield event.get("data") if event else None
    raise ServiceProblem("The service closed the event stream.")


def _content(items: list[str]) -> dict[str, str | list[str]]:
    """ID=TEXT; a repeated id makes a list."""
    content: dict[str, str | list[str]] = {}
    for item in items:
        id, separator, text = item.partition("=")
        if not separator:
            raise typer.BadParameter(f"{item} is not of the form ID=TEXT", param_hint="--say")
        before = content.get(id)
        content[id] = text if before is None else [*(before if isinstance(before, list) else [before]), text]
    return content


class EndedMeanwhile(Exception):
    """The current ask ended while its answer was being typed."""


class Skipped(Exception):
    """The person skips the current ask."""


class Reviewer:
    """Prompts for an answer to each open ask, and notices when another client answers it meanwhile.

    A thread reads the event stream; it queues changes and writes a byte to a pipe, which wakes the prompt.
    """

    def __init__(self, service: ServiceClient, session: str | None) -> None:
        self._service = service
        self._session = session
        self._changes: SimpleQueue[Ask | ServiceProblem | None] = SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        self._keyboard: int | None = sys.stdin.fileno()
        self._typed = b""
        self._seen: set[str] = set()
        self._open: dict[str, Ask] = {}
        self._current: str | None = None

    def run(self) -> None:
        """Run until interrupted, or until the service stops."""
        threading.Thread(target=self._listen, daemon=True).start()
        err.print("[dim]waiting for asks; Ctrl-C ends this[/]")
        try:
            while True:
                while not self._open or select.select([self._wake_read], [], [], 0)[0]:
                    self._take_change()
                self._review(self._open.pop(next(iter(self._open))))
        except KeyboardInterrupt:
            raise typer.Exit from None

    def _listen(self) -> None:
        """Runs in its own thread."""
        try:
            for change in _changes(self._service, self._session):
                self._queue(change)
        except ServiceProblem as problem:
            self._queue(problem)

    def _queue(self, change: Ask | ServiceProblem | None) -> None:
        self._changes.put(change)
        os.write(self._wake_write, b".")

    def _take_change(self) -> None:
        os.read(self._wake_read, 1)
        change = self._changes.get()
        if isinstance(change, ServiceProblem):
            raise change
        for ask in [change] if change else open_asks(self._service, self._session):
            if ask["status"] != "open":
                self._open.pop(ask["id"], None)
                if ask["id"] == self._current:
                    raise EndedMeanwhile(outcome(ask))
            elif ask["id"] not in self._seen:
                self._seen.add(ask["id"])
                self._open[ask["id"]] = ask

    def _review(self, ask: Ask) -> None:
        """Show an ask, and prompt until an answer is accepted."""
        self._print(ask)
        self._current = ask["id"]
        try:
            while self._keyboard is not None:
                if self._send(ask, self._prompt(ask)):
                    return
        except Skipped:
            out.print("[dim]skipped[/]")
        except EndedMeanwhile as ended:
            if self._keyboard is not None and os.isatty(self._keyboard):
                termios.tcflush(self._keyboard, termios.TCIFLUSH)  # input for one ask is not taken for the next
                self._typed = b""
            out.print(f"\n[yellow]ended meanwhile:[/] {escaped(str(ended))}")
        finally:
            self._current = None

    def _print(self, ask: Ask) -> None:
        out.print(f"\n[bold]{escaped(ask['tool'])}[/] wants an answer: {escaped(summary(ask))}")
        out.print(f"[dim]{ask['id']}, of {escaped(ask['principal'])}, session {escaped(ask['session'])},", end=" ")
        out.print(f"[dim]until {ask['expires_at'][:19]}[/]")
        if ask["metadata"] and ask["kind"] != "elicitation":
            out.print(f"[dim]{escaped(json.dumps(ask['metadata']))}[/]")

    def _send(self, ask: Ask, body: Answer) -> bool:
        """Send an answer; False if the ask is still open and needs another answer."""
        try:
            ended = answer(self._service, ask["id"], body)
        except ServiceProblem as problem:
            err.print(f"[red]error:[/] {escaped(str(problem))}")
            return bool(self._service.request("GET", f"/v1/asks/{ask['id']}")["status"] != "open")
        out.print(f"[green]{escaped(outcome(ended))}[/]")
        return True

    def _prompt(self, ask: Ask) -> Answer:
        match ask["kind"], ask["metadata"].get("mode"):
            case "permission", _:
                return self._prompt_permission(ask)
            case "elicitation", "url":
                return self._prompt_url()
            case "elicitation", _:
                return self._prompt_form(ask["metadata"].get("requested_schema") or {})
        return self._prompt_questions(ask)

    def _prompt_url(self) -> Answer:
        """The person opens the URL; this is only the consent."""
        while True:
            match self._line(URL_PROMPT):
                case "a":
                    return {"content": {}}
                case "d":
                    return {"action": "decline"}
                case "s":
                    raise Skipped

    def _prompt_form(self, schema: dict[str, Any]) -> Answer:
        content: dict[str, Any] = {}
        for field in elicitation_forms.form_fields(schema):
            optional = "" if field.is_required else " [dim](optional)[/]"
            out.print(f"[bold]{escaped(field.title)}:[/] {escaped(field.description or field.kind)}{optional}")
            for number, (_, label) in enumerate(field.options, 1):
                out.print(f"  {number}. {escaped(label)}")
            if field.default is not None:
                out.print(f"  [dim]{escaped(json.dumps(field.default))} by default[/]")
            match self._line(FIELD_PROMPT):
                case "s":
                    raise Skipped
                case "-":
                    return {"action": "decline", "message": self._line("why (may be empty):") or None}
                case text if text:
                    content[field.name] = elicitation_forms.parse_typed(text, field)
        return {"content": content}

    def _prompt_permission(self, ask: Ask) -> Answer:
        while True:
            match self._line(PERMISSION_PROMPT):
                case "a":
                    return {"decision": "allow_once"}
                case "A":
                    return {
                        "decision": "allow_always",
                        "rule": self._prompt_rules(ask["always"]),
                        "scope": self._prompt_scope(),
                    }
                case "d":
                    return {"decision": "deny", "message": self._line("why (may be empty):") or None}
                case "s":
                    raise Skipped

    def _prompt_rules(self, rules: list[dict[str, str]]) -> list[dict[str, str]]:
        edited = []
        for rule in rules:
            pattern = self._line(f"always allow {printable(rule['permission'])} ({printable(rule['pattern'])}):")
            edited.append({"permission": rule["permission"], "pattern": pattern or rule["pattern"]})
        return edited

    def _prompt_scope(self) -> str:
        while True:
            choice = self._line("in this [s]ession, this [w]orkspace, or [g]lobally (s):")
            if choice in SCOPES:
                return SCOPES[choice]

    def _prompt_questions(self, ask: Ask) -> Answer:
        content = {}
        for question in ask["questions"]:
            out.print(f"[bold]{escaped(question['header'])}:[/] {escaped(question['question'])}")
            for number, option in enumerate(question["options"], 1):
                out.print(f"  {number}. {escaped(option['label'])}  [dim]{escaped(option['description'] or '')}[/]")
            text = self._line(QUESTION_PROMPT)
            if not text:
                raise Skipped
            if text == "-":
                return {"action": "decline", "message": self._line("why (may be empty):") or None}
            content[question["id"]] = self._choose(text, question["options"])
        return {"content": content}

    def _choose(self, text: str, options: list[dict[str, Any]]) -> str:
        """The option of a number, or the text itself."""
        if not (text.isdecimal() and 0 < int(text) <= len(options)):
            return text
        option = options[int(text) - 1]
        if not option["is_other"]:
            return str(option["label"])
        while not (words := self._line("in your own words:")):
            pass
        return words

    def _line(self, prompt: str) -> str:
        """Read a line from the terminal; handles changes of asks meanwhile."""
        out.print(prompt, markup=False, end=" ")
        out.file.flush()
        while b"\n" not in self._typed:
            if self._keyboard is None:
                raise Skipped
            ready, _, _ = select.select([self._keyboard, self._wake_read], [], [])
            if self._wake_read in ready:
                self._take_change()
            elif data := os.read(self._keyboard, 4096):
                self._typed += data
            else:
                self._keyboard = None
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace").strip()
