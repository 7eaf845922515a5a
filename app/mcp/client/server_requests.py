"""Guests: what servers ask and tell by themselves; whose matter it is, and who answers.

A question belongs to the call that the server names, else to the only call the
server has, else to nobody's: then it becomes a call of the admin's own, so that
it is asked and recorded like everything else.

Roots: the folders a server is told to work in, as it wants to hear of them.

Visits: what a server asked that becomes a call of its own, by a hidden tool that nobody else can use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple
from urllib.parse import quote

from app.core.errors import AskExpired, CallError, Declined, PermissionDenied
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Context, Tool
from app.core.util.json_codec import Raw
from app.core.util.throttle import Throttle
from app.mcp.client import elicitation, prompts
from app.mcp.client.detached_requests import DetachedRequests, TooManyDetachedRequests
from app.mcp.client.elicitation import UrlElicitations
from app.mcp.client.handshake import CAPABILITIES, CLIENT_CAPABILITIES
from app.mcp.client.interfaces import Change, ChangeFeed, JsonRpcError, Upstream
from app.mcp.client.results import sentence
from app.mcp.client.sampling import SAMPLING, Gateway, make, to_chat


def listed(folders: Iterable[str]) -> list[Raw]:
    return [root(str(folder)) for folder in folders]


def root(folder: str) -> Raw:
    """One folder; what is an address already stays one."""
    uri = folder if "://" in folder else f"file://{quote(folder)}"
    return {"uri": uri, "name": folder.rstrip("/").rpartition("/")[2] or folder}


log = logging.getLogger(__name__)

Submit = Callable[[str, Raw], Awaitable[Result]]
"""Runs a tool with these arguments as a call of the admin's; raises its `CallError`."""

METHOD_NOT_FOUND = -32601
INTERNAL = -32603
REFUSED = -1
"""What the protocol has for a sampling that a person does not want."""
MOST_ASKED = 16
"""Questions that belong to one call at a time."""
MOST_LOGGED = 2000
NO_GATEWAY = "sampling is not offered here: no LLM gateway is configured"


class CallSite(NamedTuple):
    """Where calls meet what a server asks: at the server, or at the one that is started for their session."""

    owner: str | None
    server: str
    session: tuple[str, str] | None


class ActiveCall:
    """A call that a server has, as long as the context lasts, and what that server asks because of it."""

    __slots__ = ("_all", "_place", "asked", "ctx", "logs")

    def __init__(self, everywhere: "dict[CallSite, dict[str, ActiveCall]]", place: CallSite, ctx: Context) -> None:
        self._all = everywhere
        self._place = place
        self.ctx = ctx
        self.asked: set[asyncio.Task[Raw]] = set()
        self.logs: Throttle[Raw] = Throttle(
            self._log
        )  # to name the type in the call would make it several times slower

    async def __aenter__(self) -> None:
        self._all.setdefault(self._place, {})[self.ctx.id] = self

    async def __aexit__(self, *how: object) -> None:
        """The call is over, and with it what was asked because of it."""
        here = self._all[self._place]
        del here[self.ctx.id]
        if not here:
            del self._all[self._place]
        self.logs.flush()
        for task in self.asked:
            task.cancel()
        if self.asked:
            await asyncio.wait(self.asked)

    def _log(self, entry: Raw) -> None:
        self.ctx.metadata(metadata={"log": entry})


class ServerRequests:
    """Knows which calls each server has. There is one for all servers.

    `root_of` is the workspace of a session, `roots` are the folders of servers that say nothing of their own.
    """

    def __init__(
        self,
        *,
        submit: Submit,
        bulletin: ChangeFeed,
        root_of: Callable[[Session], str],
        roots: Sequence[str] = (),
        gateway: Gateway | None = None,
    ) -> None:
        self.submit = submit
        self.bulletin = bulletin
        self.root_of = root_of
        self.roots = tuple(roots)
        self.gateway = gateway
        self.visits = DetachedRequests()
        self.pages = UrlElicitations()
        self._present: dict[CallSite, dict[str, ActiveCall]] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What questions and prompts become a call with. No model hears of them."""
        sampling = [make(self.gateway, self.visits)] if self.gateway else []
        return (elicitation.make(self.visits), prompts.make(), *sampling)

    def capabilities(self, ctx: Context | None) -> Raw:
        """What a server may ask of us while it has this call, as it goes along with a request of the newer era."""
        can = {name: value for name, value in CAPABILITIES.items() if name != "sampling"}
        attendant = ctx.back_channel if ctx is not None else None
        if attendant is not None and attendant.offers("sampling/createMessage", {"tools": []}):
            can["sampling"] = {"tools": {}}
        elif self.gateway is not None or (attendant is not None and attendant.offers("sampling/createMessage", {})):
            can["sampling"] = CAPABILITIES["sampling"]
        return {CLIENT_CAPABILITIES: can}

    def visitor(self, upstream: Upstream, session: Session | None = None) -> "ConnectionHandler":
        """The guest of one link; with a session, of the link that is that session's alone."""
        return ConnectionHandler(self, upstream, session)

    def having(self, upstream: Upstream, ctx: Context) -> AbstractAsyncContextManager[None]:
        """As long as this lasts, the server has this call."""
        return ActiveCall(self._present, place_of(upstream, ctx.session), ctx)

    def only(self, place: CallSite) -> Context | None:
        """The one call that is there, if there is just one."""
        present = list(self._present.get(place, {}).values())
        return present[0].ctx if len(present) == 1 else None

    def presence(self, place: CallSite, ctx: Context | None) -> ActiveCall | None:
        return self._present.get(place, {}).get(ctx.id) if ctx else None


def place_of(upstream: Upstream, session: Session | None) -> CallSite:
    definition = upstream.definition
    is_apart = definition.per_session and session is not None
    return CallSite(upstream.owner, definition.name, (session.principal, session.id) if session and is_apart else None)


class ConnectionHandler:
    """The `Guest` of one link."""

    def __init__(self, reception: ServerRequests, upstream: Upstream, session: Session | None) -> None:
        self._reception = reception
        self._upstream = upstream
        self._session = session

    @property
    def _place(self) -> CallSite:
        """Found when it is wanted: most calls are asked nothing."""
        return place_of(self._upstream, self._session)

    async def asked(self, method: str, params: Raw, about: Context | None) -> Raw:
        ctx = about or self._reception.only(self._place)
        answering = self._answer(method, params, ctx)
        present = self._reception.presence(self._place, ctx)
        if present is None:
            return await answering
        present.ctx.reset_timeout()
        return await self._on_behalf(present, answering)

    def told(self, method: str, params: Raw, about: Context | None) -> None:
        match method, params:
            case "notifications/resources/updated", {"uri": str(uri)}:
                change = Change("resources", self._upstream.definition.name, self._upstream.owner, uri)
                self._reception.bulletin.post(change)
            case "notifications/elicitation/complete", {"elicitationId": str(id)}:
                self._reception.pages.complete(id)
            case "notifications/message", _:
                self._log(params, about or self._reception.only(self._place))

    def _log(self, params: Raw, ctx: Context | None) -> None:
        """Whose call it is gets to see it: the MCP client that waits for it, and who watches its events."""
        present = self._reception.presence(self._place, ctx)
        if present is None:
            return
        if present.ctx.back_channel is not None:
            present.ctx.back_channel.notify("notifications/message", params)
        said = params.get("data")
        text = said if isinstance(said, str) else str(said)
        entry = {"level": str(params.get("level", "info"))[:16], "data": text[:MOST_LOGGED]}
        if isinstance(logger := params.get("logger"), str):
            entry["logger"] = logger[:64]
        present.logs.offer(entry)

    async def _on_behalf(self, present: ActiveCall, answering: Coroutine[Any, Any, Raw]) -> Raw:
        """What belongs to a call ends with it, also when the server does not take it back."""
        if len(present.asked) >= MOST_ASKED:
            answering.close()
            raise JsonRpcError(INTERNAL, f"{MOST_ASKED} questions of this call are open already")
        task = asyncio.create_task(answering)
        present.asked.add(task)
        try:
            await asyncio.wait([task])
        finally:
            present.asked.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise JsonRpcError(INTERNAL, "the call that this belongs to has ended")
        return task.result()

    async def _answer(self, method: str, params: Raw, ctx: Context | None) -> Raw:
        try:
            match method:
                case "elicitation/create":
                    return await self._elicit(params, ctx)
                case "sampling/createMessage":
                    return await self._sample(params, ctx)
                case "roots/list":
                    return {"roots": await self._roots(ctx)}
        except TooManyDetachedRequests:
            raise JsonRpcError(INTERNAL, "too many questions are open already") from None
        raise JsonRpcError(METHOD_NOT_FOUND, f"{method} is not offered here")

    async def _elicit(self, params: Raw, ctx: Context | None) -> Raw:
        server = self._upstream.definition.name
        shows = elicitation.shown(server, params)
        try:
            if ctx is not None:
                return elicitation.to_result(await ctx.elicit(shows), shows)
            with self._reception.visits.announced(server, shows) as arguments:
                said: Raw = (await self._reception.submit(elicitation.ELICITATION, arguments)).structured
                return said
        except CallError as error:
            is_no = isinstance(error, Declined) or error.code == Declined.code
            return {"action": "decline" if is_no else "cancel"}

    async def _sample(self, params: Raw, ctx: Context | None) -> Raw:
        attendant = ctx.back_channel if ctx else None
        try:
            if attendant is not None and attendant.offers("sampling/createMessage", params):
                return await attendant.request("sampling/createMessage", params)
            if self._reception.gateway is None:
                raise JsonRpcError(METHOD_NOT_FOUND, NO_GATEWAY)
            to_chat(params, "")  # what cannot be asked is not shown to a person
            with self._reception.visits.announced(self._upstream.definition.name, params) as arguments:
                call = ctx.call if ctx else self._reception.submit
                said: Raw = (await call(SAMPLING, arguments)).structured
                return said
        except CallError as error:
            is_no = error.code in (Declined.code, PermissionDenied.code, AskExpired.code)
            raise JsonRpcError(REFUSED if is_no else INTERNAL, sentence(error.message)) from None

    async def _roots(self, ctx: Context | None) -> list[Raw]:
        definition = self._upstream.definition
        if definition.roots == "caller":
            return await _callers(ctx)
        if definition.roots:
            return listed(definition.roots)
        session = self._session or (ctx.session if ctx else None)
        if definition.per_session and session is not None:
            return listed([self._reception.root_of(session)])
        return listed(self._reception.roots)


async def _callers(ctx: Context | None) -> list[Raw]:
    """The roots of the MCP client that makes the call, if it has any."""
    attendant = ctx.back_channel if ctx else None
    if attendant is None or not attendant.offers("roots/list", {}):
        return []
    try:
        answer = await attendant.request("roots/list", {})
    except CallError:
        return []
    roots: Any = answer.get("roots")
    return roots if isinstance(roots, list) else []
