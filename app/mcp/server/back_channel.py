"""Requests to the MCP client that waits for a call: elicitation, sampling, roots.

Two ways to send one: pushed on the stream of the client's request (up to 2025-11-25), or as an `input_required` result,
after which the client repeats its request with the answers (2026-07-28). The requests are the same.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from app.core.asks import Answer, Ask, AskKind, Decision, misfit
from app.core.errors import Declined, StoreError
from app.core.principals import Key, Scope
from app.core.util.json_codec import Raw
from app.dispatch.permission.asks import AnswerRefused, AskEnded, AskQueue
from app.mcp.client.input_required import InputRequest, current_question
from app.mcp.server.request_context import Ctx, is_valid_result

if TYPE_CHECKING:
    from mcp_types import ClientCapabilities
    from pydantic import BaseModel

log = logging.getLogger(__name__)

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"
STATE = "requestState"
RESPONSES = "inputResponses"
DISCONNECTED = "The MCP client has disconnected."
WRONG_ANSWER = "The MCP client's answer does not match the question."
GATHER_SECONDS = 1.0
"""How long requests that belong together wait for each other."""
MAX_ROUNDS = 64
"""How often a client may be asked to repeat its request for one call."""
FORM = "form"
URL = "url"

Notify = Callable[[str, Raw], None]
"""Queues a notification for a client, which may drop it."""


class ClientChannel(Protocol):
    """A way to send requests to a client."""

    async def ask(self, id: str, method: str, params: Raw, count: int) -> Raw:
        """The client's answer; raises `Declined` when there is none. It is one of `count` requests sent together."""
        ...


class McpBackChannel:
    """The `BackChannel` port: the client that waits for one call."""

    def __init__(
        self,
        key: Key,
        asks: AskQueue,
        channel: ClientChannel,
        *,
        capabilities: "ClientCapabilities | None",
        notify: Notify,
    ) -> None:
        self._key = key
        self._asks = asks
        self._channel = channel
        self._capabilities = capabilities
        self._notify = notify
        self._elicitations: dict[str, asyncio.Task[None]] = {}
        self._requests = 0

    def offers(self, method: str, params: dict[str, Any]) -> bool:
        capabilities = self._capabilities
        if capabilities is None:
            return False
        if method == SAMPLE:
            sampling, needs_tools = capabilities.sampling, "tools" in params or "toolChoice" in params
            return sampling is not None and (not needs_tools or sampling.tools is not None)
        return method == ROOTS and capabilities.roots is not None

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._requests += 1
        request = current_question.get() or InputRequest(f"{method}-{self._requests}", 1)
        return await self._channel.ask(request.key, method, params, request.total)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._notify(method, params)

    def opened(self, ask: Ask) -> None:
        form = elicitation_of(ask, self._key)
        if form is not None and self._can_elicit(URL if form.get("mode") == URL else FORM):
            self._elicitations[ask.id] = asyncio.create_task(self._elicit(ask, form))

    def ended(self, ask: Ask) -> None:
        """The ask has its answer, from the client or elsewhere: stop asking the client."""
        task = self._elicitations.pop(ask.id, None)
        if task is not None:
            task.cancel()

    def _can_elicit(self, mode: str) -> bool:
        """A client that declares no modes supports forms."""
        elicitation = self._capabilities.elicitation if self._capabilities is not None else None
        if elicitation is None:
            return False
        return elicitation.url is not None if mode == URL else elicitation.form is not None or elicitation.url is None

    async def _elicit(self, ask: Ask, form: Raw) -> None:
        """Send an ask to the client's user. Without an answer it stays open for others."""
        request = (current_question.get() if ask.kind is AskKind.ELICITATION else None) or InputRequest(ask.id, 1)
        try:
            response = await self._channel.ask(request.key, ELICIT, form, request.total)
        except Declined as declined:
            log.info("the MCP client did not show ask %s to its user: %s", ask.id, declined)
            return
        self._elicitations.pop(ask.id, None)
        try:
            await self._asks.answer(ask, answer_of(ask, response, self._key), self._key)
        except AskEnded:
            pass  # answered elsewhere first
        except (AnswerRefused, StoreError) as error:
            log.warning("the MCP client's answer to ask %s was rejected: %s", ask.id, error)


class PushChannel:
    """Sends requests on the stream of the request that made the call."""

    def __init__(self, ctx: Ctx) -> None:
        self._ctx = ctx
        self._pending: set[asyncio.Task[Raw]] = set()
        self._is_closed = False

    def close(self) -> None:
        """The stream has ended, and with it the requests sent on it."""
        self._is_closed = True
        for task in self._pending:
            task.cancel()

    async def ask(self, id: str, method: str, params: Raw, count: int) -> Raw:
        if self._is_closed:
            raise Declined(DISCONNECTED)
        task = asyncio.create_task(self._send(method, params))
        self._pending.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._pending.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise Declined(DISCONNECTED)
        return task.result()

    async def _send(self, method: str, params: Raw) -> Raw:
        from mcp import MCPError
        from mcp.shared.message import ServerMessageMetadata
        from pydantic import ValidationError

        any_request, any_result = _wire_models()
        metadata = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        request: Any = any_request(method=method, params=_without_nulls(params))
        try:
            response = await self._ctx.session.send_request(request, any_result, metadata=metadata)
        except (MCPError, ValidationError) as error:
            raise Declined(f"The MCP client did not answer: {error}.") from None
        return response.model_dump(mode="json")


@lru_cache
def _wire_models() -> "tuple[type[BaseModel], type[BaseModel]]":
    """Models of a request and a result that keep all fields. Built late, as the SDK is imported late."""
    from pydantic import ConfigDict, create_model

    request = create_model("AnyRequest", method=(str, ...), params=(dict[str, Any] | None, None))
    return request, create_model("AnyResult", __config__=ConfigDict(extra="allow"))


@dataclass(slots=True)
class PendingRequest:
    """A request whose answer comes when the client repeats its own."""

    method: str
    params: Raw
    answer: "asyncio.Future[Raw]"


class InputRequiredChannel:
    """Gathers requests for an `input_required` result, and takes the answers the client repeats its request with.

    `has_requests` is set while there is something to ask. A client may know a server's requests beforehand and send
    `answers` with its first request.
    """

    def __init__(self, version: str, answers: Any = None) -> None:
        self.has_requests = asyncio.Event()
        self._version = version
        self._answers: Raw = dict(answers) if isinstance(answers, dict) else {}
        self._pending: dict[str, PendingRequest] = {}
        self._rounds = 0

    async def ask(self, id: str, method: str, params: Raw, count: int) -> Raw:
        if isinstance(answer := self._answers.pop(id, None), dict):
            return answer
        while id in self._pending:  # two servers may use the same key
            id += "_"
        result = {"resultType": "input_required", "inputRequests": {id: _input_request(method, params)}}
        if not is_valid_result("tools/call", self._version, result):
            raise Declined(f"The MCP client's version of the protocol does not allow this {method}.")
        if self._rounds >= MAX_ROUNDS:
            raise Declined(f"The MCP client has repeated this call {MAX_ROUNDS} times already.")
        loop = asyncio.get_running_loop()
        request = self._pending[id] = PendingRequest(method, params, loop.create_future())
        timer = loop.call_later(0 if len(self._pending) >= count else GATHER_SECONDS, self.has_requests.set)
        try:
            return await request.answer
        finally:
            timer.cancel()
            self._pending.pop(id, None)
            self._clear_if_done()

    def take(self, responses: Any) -> None:
        """Deliver the answers of a repeated request. Answers to requests that are no longer open are ignored."""
        for id, answer in responses.items() if isinstance(responses, dict) else ():
            if isinstance(answer, dict) and (request := self._pending.pop(id, None)):
                request.answer.set_result(answer)
        self._clear_if_done()

    def result(self, state: str) -> Raw:
        """The `input_required` result with all open requests."""
        self._rounds += 1
        requests = {id: _input_request(request.method, request.params) for id, request in self._pending.items()}
        return {"resultType": "input_required", "inputRequests": requests, STATE: state}

    def _clear_if_done(self) -> None:
        if not self._pending:
            self.has_requests.clear()


def _input_request(method: str, params: Raw) -> Raw:
    params = _without_nulls(params)
    if method == ELICIT:
        params.pop("elicitationId", None)  # removed in 2026-07-28
    return {"method": method, "params": params} if params else {"method": method}


def _without_nulls(params: Raw) -> Raw:
    return {name: value for name, value in params.items() if value is not None}


def elicitation_of(ask: Ask, key: Key) -> Raw | None:
    """The params of `elicitation/create` for an ask; None for one that this key may not answer."""
    match ask.kind:
        case AskKind.PERMISSION:
            return _permission_form(ask, key) if key.may(Scope.ASKS_ANSWER) else None
        case AskKind.QUESTION:
            return {
                "mode": FORM,
                "message": "\n".join(question["question"] for question in ask.questions),
                "requestedSchema": {
                    "type": "object",
                    "properties": {question["id"]: _question_field(question) for question in ask.questions},
                    "required": [question["id"] for question in ask.questions],
                },
            }
        case AskKind.ELICITATION:
            return _forwarded_elicitation(ask)


def answer_of(ask: Ask, response: Raw, key: Key) -> Answer:
    """The user's answer. A refusal, or an answer to something else, counts as a no."""
    action, content = response.get("action"), response.get("content")
    if ask.kind is AskKind.PERMISSION:
        return _permission_answer(content if action == "accept" else None, key)
    if action != "accept":
        return Answer(action="decline" if action == "decline" else "cancel")
    fields: Raw = content if isinstance(content, dict) else {}
    if ask.kind is AskKind.QUESTION and misfit(fields, ask.questions):
        return Answer(action="cancel", message=WRONG_ANSWER)
    return Answer(content=fields)


def _permission_answer(content: Any, key: Key) -> Answer:
    if not isinstance(content, dict):
        return Answer(Decision.DENY)
    text, decision = content.get("message"), content.get("decision")
    message = text if isinstance(text, str) and text.strip() else None
    if decision not in _decisions(key):
        return Answer(Decision.DENY, message or WRONG_ANSWER)
    return Answer(Decision(decision), message)


def _decisions(key: Key) -> list[str]:
    always = [Decision.ALLOW_ALWAYS.value] if key.may(Scope.RULES_WRITE) else []
    return [Decision.ALLOW_ONCE.value, *always, Decision.DENY.value]


def _permission_form(ask: Ask, key: Key) -> Raw:
    needs = "\n".join(f"- {need.permission}: {need.pattern}" for need in ask.needs)
    always = ", ".join(f"{rule.permission} {rule.pattern}" for rule in ask.always)
    note = f"\nallow_always also allows from now on in this session: {always}." if key.may(Scope.RULES_WRITE) else ""
    decision = {"type": "string", "title": "Decision", "enum": _decisions(key)}
    message = {"type": "string", "title": "Message", "description": "Sent to the model when you deny."}
    return {
        "mode": FORM,
        "message": f"May {ask.tool} do this?\n{needs}{note}",
        "requestedSchema": {
            "type": "object",
            "properties": {"decision": decision, "message": message},
            "required": ["decision"],
        },
    }


def _question_field(question: dict[str, Any]) -> Raw:
    """An enum of the options where there are any, else free text."""
    field: Raw = {"type": "string", "title": question["header"], "description": question["question"]}
    labels = [option["label"] for option in question.get("options") or [] if not option.get("is_other")]
    return field | {"enum": labels} if labels else field


def _forwarded_elicitation(ask: Ask) -> Raw | None:
    """An upstream server's elicitation, unchanged. Clients of 2025 need an `elicitationId` with each URL."""
    match ask.metadata:
        case {"mode": "url", "url": str(url), "message": str(message)}:
            id = ask.metadata.get("elicitation_id")
            return {
                "mode": URL,
                "message": message,
                "url": url,
                "elicitationId": id if isinstance(id, str) else ask.id,
            }
        case {"requested_schema": dict(schema), "message": str(message)}:
            return {"mode": FORM, "message": message, "requestedSchema": schema}
    return None
