"""Tools that are one HTTP request: a definition becomes a `Tool`."""

import codecs
import json
import re
from http import HTTPStatus
from typing import Any

from app.core.custom_tools import HttpDefinition
from app.core.errors import HttpFailed
from app.core.ports import HttpResponse, PathScope
from app.core.results import Result, attach
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool
from app.custom import http_template, json_schema

GRACE_SECONDS = 5.0
"""From the request's own deadline to the call's, so that the error says that the request timed out."""
MAX_STRUCTURED_BYTES = 256 * 1024
TEXTS = re.compile(r"text/.*|.*[/+](json|xml|yaml|x-yaml|javascript|x-ndjson|x-www-form-urlencoded|graphql|csv)")
CHARSETS = re.compile(r"utf-8|utf-16.*|utf-32.*|ascii|iso8859-\d+|cp\d+|koi8-.|shift_jis.*|euc_.*|gb.*|big5.*")


def make(definition: HttpDefinition, owner: str | None) -> Tool:
    """The tool of a definition. Raises `ValueError` with a sentence when it cannot be one."""
    parse = json_schema.make_parser(definition.name, definition.parameters)
    template = http_template.prepare(definition)
    by_method = Effect.READ if definition.method in ("GET", "HEAD") else Effect.WRITE

    def needs(args: Any, scope: PathScope) -> list[Need]:
        return [Need("network", template.host)]

    async def run(args: Any, ctx: Context) -> Result:
        response = await ctx.send(http_template.fill(template, args, ctx.trace))
        result = to_result(definition.method, response)
        if not 200 <= response.status < 300:
            says = "its body is in the output" if response.body else "its body is empty"
            sentence = f"{template.method} {template.host} answered {_status(response.status)}; {says}."
            raise HttpFailed(response.status, sentence, result=result)
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
        timeout=definition.timeout + GRACE_SECONDS,
        source="http",
        permission="network",
        owner=owner,
    )


def to_result(method: str, response: HttpResponse) -> Result:
    """A response as the model reads it."""
    kind = response.headers.get("content-type", "")
    mime = kind.partition(";")[0].strip().lower()
    metadata = {
        "status": response.status,
        "url": response.url,
        "content_type": kind or None,
        "bytes": len(response.body),
    }
    title = f"{method} {response.url.partition('?')[0]}"
    text = _text(response.body, mime, kind)
    if text is None:
        attachable = mime if re.fullmatch(r"[\w.+-]+/[\w.+-]+", mime) else "application/octet-stream"
        attached = () if response.is_cut else (attach(response.body, attachable),)
        note = "it is attached" if attached else "it is too large to attach"
        output = f"The response is {len(response.body):,} bytes of {mime or 'an unknown type'}, not text; {note}."
        return Result(output, title, metadata, attached)
    if response.is_cut:
        note = f"\n\n[The response was cut: only its first {len(response.body):,} bytes were read.]"
        return Result(text + note, title, metadata | {"cut": True})
    if method == "HEAD":
        text = "\n".join(f"{name}: {value}" for name, value in response.headers.items() if name != "set-cookie")
    elif not text:
        text = f"{_status(response.status)}, with an empty body."
    return Result(text, title, metadata, structured=_structure(response.body, text, mime))


def _text(body: bytes, mime: str, kind: str) -> str | None:
    """The body as text; None for binary data."""
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
    match = re.search(r"charset\s*=\s*[\"']?([A-Za-z0-9._:-]+)", kind, re.IGNORECASE)
    try:
        name = codecs.lookup(match[1]).name if match else ""
    except LookupError:
        return None
    if name == "utf-8":
        return "utf-8-sig"
    return name if CHARSETS.fullmatch(name) else None


def _structure(body: bytes, text: str, mime: str) -> Any:
    """JSON as data, unless it is too large to store twice."""
    if not re.fullmatch(r".*[/+]json", mime) or len(body) > MAX_STRUCTURED_BYTES:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
