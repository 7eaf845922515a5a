"""Tools that are one HTTP request: a definition becomes a `Tool`."""

import codecs
import json
import re
from http import HTTPStatus
from typing import Any

from app.core.custom_tools import HttpDefinition
from app.core.errors import HttpFailed
from app.core.ports import HttpResponse, PathScope
from app.core.results import Attachment, Result, attach
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool
from app.custom import http_template, json_schema

GRACE = 5.0
"""Seconds after the request's own deadline until the call's: who calls should hear which of them it was."""
MAX_STRUCTURED = 256 * 1024
TEXTS = re.compile(r"text/.*|.*[/+](json|xml|yaml|x-yaml|javascript|x-ndjson|x-www-form-urlencoded|graphql|csv)")
CHARSETS = re.compile(r"utf-8|utf-16.*|utf-32.*|ascii|iso8859-\d+|cp\d+|koi8-.|shift_jis.*|euc_.*|gb.*|big5.*")


def make(definition: HttpDefinition, owner: str | None) -> Tool:
    """The tool of a definition. Raises `ValueError` with a sentence when it cannot be one."""
    parse = json_schema.parser(definition.name, definition.parameters)
    template = http_template.prepare(definition)
    by_method = Effect.READ if definition.method in ("GET", "HEAD") else Effect.WRITE

    def needs(args: Any, scope: PathScope) -> list[Need]:
        return [Need("network", template.host)]

    async def run(args: Any, ctx: Context) -> Result:
        answer = await ctx.send(http_template.fill(template, args, ctx.trace))
        result = read(definition.method, answer)
        if not 200 <= answer.status < 300:
            raise HttpFailed(answer.status, _sentence(template, answer), result=result)
        return result

    return Tool(
        name=definition.name,
        title=definition.title or definition.name.replace("_", " ").capitalize(),
        description=definition.description,
        schema=definition.parameters,
        parse=parse,
        needs=needs,
        run=run,
        effect=Effect(definition.effect) if definition.effect else by_method,
        lane=Lane.NONE,
        timeout=definition.timeout + GRACE,
        source="http",
        permission="network",
        owner=owner,
    )


def read(method: str, answer: HttpResponse) -> Result:
    """An answer as the model reads it."""
    kind = answer.headers.get("content-type", "")
    mime = kind.partition(";")[0].strip().lower()
    about = {"status": answer.status, "url": answer.url, "content_type": kind or None, "bytes": len(answer.body)}
    title = f"{method} {answer.url.partition('?')[0]}"
    text = _text(answer.body, mime, kind)
    if text is None:
        attached = () if answer.is_cut else (_attach(answer.body, mime),)  # what can be read can be kept
        more = "it is attached" if attached else "it is too large to attach"
        said = f"The answer is {len(answer.body):,} bytes of {mime or 'an unknown type'}, which is no text; {more}."
        return Result(said, title, about, attached)
    if answer.is_cut:
        note = f"\n\n[The answer goes on; only its first {len(answer.body):,} bytes were read.]"
        return Result(text + note, title, about | {"cut": True})
    if method == "HEAD":
        text = "\n".join(f"{name}: {value}" for name, value in answer.headers.items() if name != "set-cookie")
    elif not text:
        text = f"{_status(answer.status)}, and no text."
    return Result(text, title, about, structured=_structure(answer.body, text, mime))


def _text(body: bytes, mime: str, kind: str) -> str | None:
    """The body as text; None when it is none."""
    if not body:
        return ""
    charset = _charset(kind)
    if TEXTS.fullmatch(mime) or charset:
        return body.decode(charset or "utf-8-sig", "replace")
    try:
        return None if b"\0" in body else body.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _charset(kind: str) -> str | None:
    found = re.search(r"charset\s*=\s*[\"']?([A-Za-z0-9._:-]+)", kind, re.IGNORECASE)
    try:
        name = codecs.lookup(found[1]).name if found else ""
    except LookupError:
        return None
    if name == "utf-8":
        return "utf-8-sig"
    return name if CHARSETS.fullmatch(name) else None


def _structure(body: bytes, text: str, mime: str) -> Any:
    """JSON as data, where it is not so much that it would be kept twice for nothing."""
    if not re.fullmatch(r".*[/+]json", mime) or len(body) > MAX_STRUCTURED:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _attach(body: bytes, mime: str) -> Attachment:
    mime = mime if re.fullmatch(r"[\w.+-]+/[\w.+-]+", mime) else "application/octet-stream"
    return attach(body, mime)


def _sentence(template: http_template.Template, answer: HttpResponse) -> str:
    says = "what it says is in the output" if answer.body else "it says nothing more"
    return f"{template.method} {template.host} answered {_status(answer.status)}; {says}."


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
