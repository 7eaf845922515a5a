"""Resources, resource templates and prompts of MCP servers over HTTP."""

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
from app.api.http.problems import CALL_HEADER, Problem, not_found, of_call, problem_of_call, problem_of_code
from app.api.http.responses import json_response, pending_response
from app.api.schemas.mcp import ContentsView, MessagesView, PromptView, ResourceView, TemplateView
from app.api.schemas.views import CallView, Page
from app.core.calls import Call, CallRequest, note_calls
from app.core.errors import CallError
from app.core.mcp_servers import MAX_NAME
from app.core.principals import Key
from app.core.sessions import Session
from app.core.tools import ResourceList
from app.core.util.json_codec import Raw, dumps
from app.dispatch.live_calls import committed_call
from app.mcp.client.resources import PROMPT
from app.store import outputs

router = APIRouter(prefix="/v1/mcp", tags=["mcp"], route_class=JsonRoute)

READ = "read_mcp_resource"
MAX_TEXT = 1024
"""Characters of a server's names and cursors, so that they fit into a URL."""

ServerName = Annotated[str, Query(min_length=1, max_length=MAX_NAME, description="The server.", examples=["docs"])]
AnyServer = Annotated[
    str | None,
    Query(min_length=1, max_length=MAX_NAME, description="Only of this server; without it, of all that are connected."),
]
Cursor = Annotated[
    str | None, Query(max_length=MAX_TEXT, description="`next_cursor` of the page before; only with `server`.")
]
SessionId = Annotated[str | None, Query(description="The session whose rules apply.")]
Part = Literal["resources", "prompts"]
ListPage = Callable[[Session, str | None, str | None], Awaitable[ResourceList]]
_CALL_HEADER = {CALL_HEADER: {"description": "The call this request became.", "schema": {"type": "string"}}}
SERVER_ERRORS: dict[int | str, dict[str, Any]] = {
    502: {"description": "The server refused, or disconnected."},
    504: {"description": "The server did not answer in time."},
}
CALL_RESPONSES: dict[int | str, dict[str, Any]] = SERVER_ERRORS | {
    200: {"headers": _CALL_HEADER},
    202: {"model": CallView, "description": "The call waits, mostly for a person.", "headers": _CALL_HEADER},
    409: {"description": "The call was canceled."},
    501: {"description": "The tool that does it is disabled."},
}


class PromptRequest(BaseModel, extra="forbid"):
    """A prompt to fill in."""

    server: str = Field(min_length=1, max_length=MAX_NAME, description="The server that has it.", examples=["docs"])
    name: str = Field(min_length=1, max_length=MAX_TEXT, description="The prompt.", examples=["summarise"])
    arguments: dict[str, str] = Field(default={}, description="Values by the names of the prompt's arguments.")


@dataclass(frozen=True, slots=True)
class McpRequest:
    """A request about MCP servers, in a session that its key may see."""

    request: Request
    services: Services
    key: Key
    session: Session

    def check(self, server: str, part: Part) -> None:
        """Raises 404 when there is no such server for this caller, or when rules deny it."""
        exists = self.services.servers.get(server, self.session.principal) is not None
        if not exists or not self.services.listing.allows_mcp(server, part, self.session, self.key):
            raise not_found(f"MCP server {server}")

    async def page(self, list_page: ListPage, part: Part, server: str | None, cursor: str | None) -> Response:
        """A page of a list, of one server or of all."""
        if server is not None:
            self.check(server, part)
        try:
            listed = await list_page(self.session, server, cursor if server is not None else None)
        except CallError as error:
            raise problem_of_code(error.code, error.message) from None
        names = {item["server"] for item in listed.items}
        visible = {name for name in names if self.services.listing.allows_mcp(name, part, self.session, self.key)}
        items = [item for item in listed.items if item["server"] in visible]
        return self.respond({"data": items, "next_cursor": listed.next_cursor})

    async def run(self, tool: str, arguments: Raw, seconds: float) -> Call:
        """Submit the call of this request and wait for its end, `seconds` at most."""
        self.services.dispatcher.live_calls.require_accepting()
        request = CallRequest(tool=tool, arguments=arguments)
        origin = trace_context(self.request.headers)
        live = self.services.dispatcher.submit(request, self.session, key=self.key, origin=origin)
        note_calls(self.request.scope, live.call.id)
        await live.wait(seconds)
        return await committed_call(self.services.engine, live)

    def pending(self, call: Call) -> Response:
        return pending_response(call, self.request.scope.get("root_path", ""))

    def respond(self, body: Raw) -> Response:
        """Servers may send secrets, so their texts are redacted as the output of a tool is."""
        redacted = self.request.app.state.redactor.json(dumps(body).decode(), is_output=True)
        return Response(redacted, media_type=JSON)


async def _reader(request: Request, key: Reader, services: ServicesDep, session: SessionId = None) -> McpRequest:
    return McpRequest(request, services, key, await session_named(services, key, session))


async def _runner(request: Request, key: Runner, services: ServicesDep, session: SessionId = None) -> McpRequest:
    return McpRequest(request, services, key, await session_named(services, key, session))


ReadRequest = Annotated[McpRequest, Depends(_reader)]
RunRequest = Annotated[McpRequest, Depends(_runner)]


@router.get("/resources", response_model=Page[ResourceView], responses=SERVER_ERRORS)
async def list_mcp_resources(mcp: ReadRequest, server: AnyServer = None, cursor: Cursor = None) -> Response:
    """The resources of servers. Without `server`, those of all connected servers in one page."""
    return await mcp.page(mcp.services.dispatcher.resources.mcp_resources.resources, "resources", server, cursor)


@router.get("/resources/read", response_model=ContentsView, responses=CALL_RESPONSES)
async def read_mcp_resource(
    mcp: RunRequest,
    server: ServerName,
    uri: Annotated[str, Query(min_length=1, max_length=MAX_TEXT, description="Which one.", examples=["docs://guide"])],
    wait: Wait = DEFAULT_WAIT,
) -> Response:
    """A resource. A call of `read_mcp_resource`: where a rule asks, the response is 202 when the person has not
    answered within `wait` seconds; a later request is another call."""
    mcp.check(server, "resources")
    call = await mcp.run(READ, {"server": server, "uri": uri}, wait)
    if not call.is_final:
        return mcp.pending(call)
    if call.error is not None:
        raise problem_of_call(call)
    result = json.loads(call.result or "{}")
    page = await _output_json(mcp.services, call, result["output"])
    body = {"server": server, "uri": uri, "contents": page["contents"], "attachments": result["attachments"]}
    return json_response(body | {"call": call.id}, headers={CALL_HEADER: call.id})


@router.get("/templates", response_model=Page[TemplateView], responses=SERVER_ERRORS)
async def list_mcp_templates(mcp: ReadRequest, server: AnyServer = None, cursor: Cursor = None) -> Response:
    """The resource templates of servers."""
    return await mcp.page(mcp.services.dispatcher.resources.mcp_resources.templates, "resources", server, cursor)


@router.get("/prompts", response_model=Page[PromptView], responses=SERVER_ERRORS)
async def list_mcp_prompts(mcp: ReadRequest, server: AnyServer = None, cursor: Cursor = None) -> Response:
    """The prompts of servers."""
    return await mcp.page(mcp.services.dispatcher.resources.mcp_resources.prompts, "prompts", server, cursor)


@router.post("/prompts", response_model=MessagesView, responses=CALL_RESPONSES)
async def fill_mcp_prompt(mcp: RunRequest, prompt: PromptRequest, wait: Wait = DEFAULT_WAIT) -> Response:
    """A prompt, filled in by its server. A call, as reading a resource is, with the need `server/prompt:name`."""
    mcp.check(prompt.server, "prompts")
    call = await mcp.run(PROMPT, prompt.model_dump(), wait)
    if not call.is_final:
        return mcp.pending(call)
    if call.error is not None:
        raise problem_of_call(call)
    page = await _output_json(mcp.services, call, json.loads(call.result or "{}")["output"])
    body: Raw = {"messages": []} | page | {"server": prompt.server, "name": prompt.name, "call": call.id}
    return json_response(body, headers={CALL_HEADER: call.id})


async def _output_json(services: Services, call: Call, output: str) -> Raw:
    """The whole output of the call; the result has it truncated for the model."""
    size = await outputs.size(services.engine, call.id)
    text = await outputs.read(services.engine, call.id, 0, size) if size else output.encode()
    try:
        page: Raw = json.loads(text)
    except ValueError:
        raise of_call(call, Problem(413, "TooLarge", "It is larger than the stored output of a call.")) from None
    return page
