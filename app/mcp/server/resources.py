"""Resources of the servers, shown at the door as if they were one server's.

Addresses: which server a resource or a prompt is of, when all servers are shown as one.

A resource keeps its own URI where only one server has it, and else is prefixed with its server's name. A template
that several servers have is prefixed too. Prompts are named as tools are.

Contents: a resource that was read by a call, as its server gave it.
"""

import asyncio
import base64
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.errors import CallError
from app.core.mcp_resources import McpResources
from app.core.sessions import Session
from app.core.util.json_codec import Raw
from app.dispatch.attachments import Attached, load
from app.dispatch.tools.listing import Listing
from app.mcp.server.list_cache import Kind, ListCache, reached_by
from app.mcp.server.request_context import INTERNAL_ERROR, RequestContext, failure, missing, refusal, refused
from app.store import outputs

if TYPE_CHECKING:
    from app.mcp.server.request_context import Ctx
if TYPE_CHECKING:
    from app.mcp.server.request_context import Ctx


PREFIX = "toolcrib://mcp/"
_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


class Address(NamedTuple):
    """A resource as its server knows it."""

    server: str
    uri: str


def prefixed(server: str, uri: str) -> str:
    """The form that says the server. It can be read back, whatever the URI is."""
    return f"{PREFIX}{server}/{uri}"


def unprefixed(uri: str) -> Address | None:
    """The server and the URI in a prefixed form; None for any other."""
    if not uri.startswith(PREFIX):
        return None
    server, slash, rest = uri.removeprefix(PREFIX).partition("/")
    return Address(server, rest) if slash and server and rest else None


def shown(items: Sequence[Raw], field: str) -> list[Raw]:
    """Resources or templates of all servers, each with an address that says which one it is."""
    counts = Counter(item[field] for item in items if isinstance(item.get(field), str))
    found = []
    for item in items:
        uri = item.get(field)
        if isinstance(uri, str):
            is_plain = counts[uri] == 1 and not uri.startswith(PREFIX)
            found.append(item | {field: uri if is_plain else prefixed(item["server"], uri)})
    return found


def servers_of(uri: str, resources: Sequence[Raw], templates: Sequence[Raw]) -> list[str]:
    """Who has this resource: those that list it, else those that have a template for it."""
    listing = sorted({item["server"] for item in resources if item.get("uri") == uri})
    if listing:
        return listing
    return sorted({item["server"] for item in templates if fits(uri, item.get("uriTemplate"))})


def fits(uri: str, template: object) -> bool:
    """Whether a template could have given this URI. Generous, and quick whatever both look like: what stands between
    the expressions comes in this order, and up to the first with an operator what stands for one has no slash. The
    server has the last word."""
    if not isinstance(template, str):
        return False
    parts = _EXPRESSION.split(template)
    literals, operators = parts[::2], parts[1::2]
    if not operators:
        return uri == template
    if not uri.startswith(literals[0]):
        return False
    plain = next((number for number, operator in enumerate(operators) if operator), len(operators))
    at = len(literals[0])
    for number, literal in enumerate(literals[1:-1]):
        found = uri.find(literal, at)
        if found < 0 or (number < plain and "/" in uri[at:found]):
            return False
        at = found + len(literal)
    end = len(uri) - len(literals[-1])
    return end >= at and uri.endswith(literals[-1]) and (plain < len(operators) or "/" not in uri[at:end])


_FILE = re.compile(r"attached as file (\d+)\]$")
PIECE = 1024 * 1024


async def contents_of(engine: AsyncEngine, ctx: "Ctx", call: Call) -> Raw:
    """What `resources/read` answers; raises an error of the protocol for a call that failed.

    The tool writes the server's answer as its output, with the files of it attached; here they come together again.
    """
    result, page = await _given(engine, ctx, call)
    attached = await load(engine, call.id, result["attachments"])
    said = {name: value for name, value in page.items() if name not in ("server", "uri")}
    return said | {"contents": [_one(content, attached) for content in page["contents"]]}


async def messages_of(engine: AsyncEngine, ctx: "Ctx", call: Call) -> Raw:
    """What `prompts/get` answers, likewise."""
    _, page = await _given(engine, ctx, call)
    return page


async def _given(engine: AsyncEngine, ctx: "Ctx", call: Call) -> tuple[Raw, Raw]:
    """The result of a call, and the server's answer in it."""
    if call.error is not None:
        raise refused(json.loads(call.error), ctx)
    if call.result is None:
        raise refusal(f"The service stops, and call {call.id} goes on when it is back.", INTERNAL_ERROR)
    result = json.loads(call.result)
    try:
        page: Raw = json.loads(await _whole(engine, call.id, result))
    except ValueError:
        raise refusal("What the server gave is more than is kept of a call.", INTERNAL_ERROR) from None
    return result, page


async def _whole(engine: AsyncEngine, call: str, result: dict[str, Any]) -> str:
    """The output; if it was cut, what is kept of it in full."""
    if result["metadata"].get("truncated") is not True:
        return str(result["output"])
    pieces, offset = list[bytes](), 0
    while found := await outputs.chunks(engine, call, offset, PIECE):
        pieces += [data for _, _, data in found]
        offset = found[-1][0] + len(found[-1][2])
    return b"".join(pieces).decode()


def _one(content: Any, attached: list[Attached]) -> Any:
    """One of the contents, with its bytes in it again; where there are none, with the reason."""
    if not isinstance(content, dict) or "blob" not in content:
        return content
    found = _FILE.search(str(content["blob"]))
    data = attached[int(found[1]) - 1][1] if found and int(found[1]) <= len(attached) else None
    if data is not None:
        return content | {"blob": base64.b64encode(data).decode()}
    bare = {name: value for name, value in content.items() if name != "blob"}
    return bare | {"mimeType": "text/plain", "text": content["blob"]}


READS = "read_mcp_resource"


class Watched(NamedTuple):
    """A resource somebody wants to hear of, and for which session."""

    address: Address
    session: Session


class McpServerResources:
    """A key that may not use the tool that reads them does not see them either."""

    def __init__(self, neighbours: McpResources, listing: Listing, shelves: ListCache) -> None:
        self._neighbours = neighbours
        self._listing = listing
        self._shelves = shelves

    async def all(self, caller: RequestContext) -> list[Raw]:
        return shown(await self._seen("resources", caller, is_new=True), "uri")

    async def templates(self, caller: RequestContext) -> list[Raw]:
        return shown(await self._seen("templates", caller, is_new=True), "uriTemplate")

    async def find(self, ctx: "Ctx", caller: RequestContext, uri: str) -> Address:
        """Where a resource is; raises an error of the protocol when nobody has it, or more than one."""
        if (address := unprefixed(uri)) is not None:
            if not self._listing.lets_reach(address.server, "resources", caller.whole_session, caller.key):
                raise missing(ctx, self._listing.quoted(uri))
            return address
        resources, templates = await asyncio.gather(self._seen("resources", caller), self._seen("templates", caller))
        servers = servers_of(uri, resources, templates)
        if not servers:  # not listed: where only one has any at all, it may know it
            servers = sorted({item["server"] for item in [*resources, *templates]})
            if len(servers) != 1:
                raise missing(ctx, self._listing.quoted(uri))
        if len(servers) > 1:
            said = self._listing.quoted(uri)
            forms = " or ".join(prefixed(server, said) for server in servers)
            raise refusal(f"Several servers have {said}; say {forms}.")
        return Address(servers[0], uri)

    async def watch(self, ctx: "Ctx", caller: RequestContext, uri: str) -> Watched:
        address = await self.find(ctx, caller, uri)
        try:
            await self._neighbours.watch(caller.whole_session, *address)
        except CallError as error:
            raise failure(error, ctx) from None
        return Watched(address, caller.whole_session)

    async def unwatch(self, watched: Watched) -> None:
        await self._neighbours.unwatch(watched.session, *watched.address)

    async def template(self, caller: RequestContext, template: str) -> Address:
        """Which server a template is of, by the address it is shown with."""
        if (address := unprefixed(template)) is not None:
            return address
        found = await self._seen("templates", caller)
        servers = sorted({item["server"] for item in found if item.get("uriTemplate") == template})
        if len(servers) != 1:
            raise refusal(f"There is no one resource template {self._listing.quoted(template)}.")
        return Address(servers[0], template)

    async def _seen(self, kind: Kind, caller: RequestContext, *, is_new: bool = False) -> list[Raw]:
        if caller.session is None or not caller.key.bounds.allows_tool(READS):
            return []
        look = self._shelves.look if is_new else self._shelves.recall
        items = await look(kind, caller.session)
        reached = reached_by(self._listing, caller, "resources", items)
        return [item for item in items if item["server"] in reached]
