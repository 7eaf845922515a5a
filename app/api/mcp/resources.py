"""What MCP servers have besides tools, over HTTP: resources, their templates, prompts."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.api.auth import Reader, Runner, Services, ServicesDep, session_named
from app.api.calls import Wait
from app.api.create_call import DEFAULT_WAIT, trace_context
from app.api.http.body import JSON, JsonRoute
from app.api.http.problems import CALL, Problem, not_found, of_call, problem_of_call, problem_of_code
from app.api.http.responses import json_response
from app.api.schemas.mcp import ContentsView, MessagesView, PromptView, ResourceView, TemplateView
from app.api.schemas.views import CallView, Page
from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import CallError
from app.core.mcp_resources import ResourceList
from app.core.mcp_servers import MAX_NAME
from app.core.principals import Key
from app.core.sessions import Session
from app.core.util.json_codec import Raw, dumps
from app.dispatch.live_calls import committed_call
from app.mcp.client.prompts import PROMPT
from app.store import outputs

router = APIRouter(prefix="/v1/mcp", tags=["mcp"], route_class=JsonRoute)

READ = "read_mcp_resource"
MAX_TEXT = 1024
"""Characters of what a server names things by, so that they fit into an address whatever they are."""

ServerName = Annotated[str, Query(min_length=1, max_length=MAX_NAME, description="The server.", examples=["docs"])]
AnyServer = Annotated[
    str | None,
    Query(min_length=1, max_length=MAX_NAME, description="Only of this server; without it, of all that are connected."),
]
Cursor = Annotated[
    str | None, Query(max_length=MAX_TEXT, description="`next_cursor` of the page before; only with `server`.")
]
SessionId = Annotated[str | None, Query(description="The session whose rules count.")]
Part = Literal["resources", "prompts"]
Ask = Callable[[Session, str | None, str | None], Awaitable[ResourceList]]
_NAMED = {CALL: {"description": "The call this request became.", "schema": {"type": "string"}}}
SAID: dict[int | str, dict[str, Any]] = {
    502: {"description": "The server said no, or left."},
    504: {"description": "The server did not answer in time."},
}
CALLED: dict[int | str, dict[str, Any]] = SAID | {
    200: {"headers": _NAMED},
    202: {"model": CallView, "description": "The call waits, mostly for a person.", "headers": _NAMED},
    409: {"description": "The call was canceled."},
    501: {"description": "The tool that does it is switched off."},
}


class PromptRequest(BaseModel, extra="forbid"):
    """A prompt to fill in."""

    server: str = Field(min_length=1, max_length=MAX_NAME, description="The server that has it.", examples=["docs"])
    name: str = Field(min_length=1, max_length=MAX_TEXT, description="The prompt.", examples=["summarise"])
    arguments: dict[str, str] = Field(default={}, description="Values by the names of the prompt's arguments.")


@dataclass(frozen=True, slots=True)
class Visit:
    """A request about what servers have, in a session that its key sees."""

    request: Request
    services: Services
    key: Key
    session: Session

    def check(self, server: str, part: Part) -> None:
        """Whether there is such a server for this caller: what rules deny it is not there."""
        is_there = self.services.servers.get(server, self.session.principal) is not None
        if not is_there or not self.services.listing.lets_reach(server, part, self.session, self.key):
            raise not_found(f"MCP server {server}")

    async def page(self, ask: Ask, part: Part, server: str | None, cursor: str | None) -> Response:
        """A page of a list, of one server or of all."""
        if server is not None:
            self.check(server, part)
        try:
            found = await ask(self.session, server, cursor if server is not None else None)
        except CallError as error:
            raise problem_of_code(error.code, error.message) from None
        reach = self.services.listing.lets_reach
        names = {item["server"] for item in found.items}
        seen = {name for name in names if reach(name, part, self.session, self.key)}
        items = [item for item in found.items if item["server"] in seen]
        return self.answer({"data": items, "next_cursor": found.next_cursor})

    async def call(self, tool: str, arguments: Raw, seconds: float) -> Call:
        """The call of this request, as it is when it has ended or was waited for long enough."""
        self.services.dispatcher.running.require_accepting()
        asked = CallRequest(tool=tool, arguments=arguments)
        origin = trace_context(self.request.headers)
        live = self.services.dispatcher.submit(asked, self.session, key=self.key, origin=origin)
        note_calls(self.request.scope, live.call.id)
        await live.wait(seconds)
        return await committed_call(self.services.engine, live)

    def later(self, call: Call) -> Response:
        prefix = self.request.scope.get("root_path", "")
        headers = {"Location": f"{prefix}/v1/calls/{call.id}", CALL: call.id}
        return json_response(call.view(), 202, headers)

    def answer(self, body: Raw) -> Response:
        """What servers say is not ours, and may hold anything; what a tool would have shown is shown here, too."""
        redacted = self.request.app.state.redactor.json(dumps(body).decode(), is_output=True)
        return Response(redacted, media_type=JSON)


async def _looking(request: Request, key: Reader, services: ServicesDep, session: SessionId = None) -> Visit:
    return Visit(request, services, key, await session_named(services, key, session))


async def _running(request: Request, key: Runner, services: ServicesDep, session: SessionId = None) -> Visit:
    return Visit(request, services, key, await session_named(services, key, session))


Looking = Annotated[Visit, Depends(_looking)]
Running = Annotated[Visit, Depends(_running)]


@router.get("/resources", response_model=Page[ResourceView], responses=SAID)
async def list_mcp_resources(visit: Looking, server: AnyServer = None, cursor: Cursor = None) -> Response:
    """What servers let be read. Without `server` those that are down are left out, and all comes in one page."""
    return await visit.page(visit.services.dispatcher.neighbours.resources, "resources", server, cursor)


@router.get("/resources/read", response_model=ContentsView, responses=CALLED)
async def read_mcp_resource(
    visit: Running,
    server: ServerName,
    uri: Annotated[str, Query(min_length=1, max_length=MAX_TEXT, description="Which one.", examples=["docs://guide"])],
    wait: Wait = DEFAULT_WAIT,
) -> Response:
    """A resource. A call of `read_mcp_resource`: where a rule asks, the answer is 202 when nobody said yes within
    `wait` seconds; asked for again later, it is another call."""
    visit.check(server, "resources")
    call = await visit.call(READ, {"server": server, "uri": uri}, wait)
    if not call.is_final:
        return visit.later(call)
    if call.error is not None:
        raise problem_of_call(call)
    result = json.loads(call.result or "{}")
    page = await _page(visit.services, call, result["output"])
    body = {"server": server, "uri": uri, "contents": page["contents"], "attachments": result["attachments"]}
    return json_response(body | {"call": call.id}, headers={CALL: call.id})


@router.get("/templates", response_model=Page[TemplateView], responses=SAID)
async def list_mcp_templates(visit: Looking, server: AnyServer = None, cursor: Cursor = None) -> Response:
    """Patterns of resources that servers have."""
    return await visit.page(visit.services.dispatcher.neighbours.templates, "resources", server, cursor)


@router.get("/prompts", response_model=Page[PromptView], responses=SAID)
async def list_mcp_prompts(visit: Looking, server: AnyServer = None, cursor: Cursor = None) -> Response:
    """Prompts that servers have ready."""
    return await visit.page(visit.services.dispatcher.neighbours.prompts, "prompts", server, cursor)


@router.post("/prompts", response_model=MessagesView, responses=CALLED)
async def fill_mcp_prompt(visit: Running, asked: PromptRequest, wait: Wait = DEFAULT_WAIT) -> Response:
    """A prompt, filled in by its server. A call like the reading of a resource, with the need `server/prompt:name`."""
    visit.check(asked.server, "prompts")
    call = await visit.call(PROMPT, asked.model_dump(), wait)
    if not call.is_final:
        return visit.later(call)
    if call.error is not None:
        raise problem_of_call(call)
    found = await _page(visit.services, call, json.loads(call.result or "{}")["output"])
    body: Raw = {"messages": []} | found | {"server": asked.server, "name": asked.name, "call": call.id}
    return json_response(body, headers={CALL: call.id})


async def _page(services: Services, call: Call, shown: str) -> Raw:
    """What the tool gave, whole: a model may have been shown less of it."""
    size = await outputs.size(services.engine, call.id)
    text = await outputs.read(services.engine, call.id, 0, size) if size else shown.encode()
    try:
        page: Raw = json.loads(text)
    except ValueError:
        raise of_call(call, Problem(413, "TooLarge", "It is larger than what is kept of a call.")) from None
    return page
