"""Asks over HTTP: what waits for a person's answer, and the answers."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Discriminator, Field, StringConstraints, Tag, model_validator

from app.api.auth import Answerer, AskReader, Services, ServicesDep
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, not_found
from app.api.http.responses import json_response, page_response
from app.api.rules import Text, refuse_secrets
from app.api.schemas import ASK_ID
from app.api.schemas.views import AskView, Page
from app.core.asks import Answer, Ask, AskKind, AskStatus, Decision, misfit
from app.core.principals import Key
from app.core.rules import Action, Rule, RuleScope
from app.dispatch.permission.asks import AnswerRefused, AskEnded
from app.mcp import elicitation_forms
from app.store import asks
from app.store.asks import AskFilter

router = APIRouter(prefix="/v1/asks", tags=["asks"], route_class=JsonRoute)

AskId = Annotated[str, Path(description="The ask's id.", examples=[ASK_ID])]
Message = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
MAX_RULES = 32
ALWAYS_ONLY = [
    {"properties": {"decision": {"const": "allow_always"}}},
    {"properties": {"rule": {"type": "null"}, "scope": {"type": "null"}}},
]
ENDED: dict[int | str, dict[str, Any]] = {409: {"description": "It is answered, or expired."}}


class RuleEdit(BaseModel, extra="forbid"):
    """A rule that an `allow_always` makes instead of the one the ask proposes."""

    permission: Text | None = Field(
        default=None, description="The permission; optional when the ask is about one permission only."
    )
    pattern: Text = Field(description="The edited pattern.", examples=["deploy/*"])


class DecisionRequest(BaseModel, extra="forbid", json_schema_extra={"anyOf": ALWAYS_ONLY}):
    """The answer to a permission ask."""

    decision: Literal["allow", "allow_once", "allow_always", "deny"] = Field(
        description="`allow` is `allow_once`; `allow_always` makes rules, and needs a key with `rules:write`."
    )
    message: Message | None = Field(default=None, description="What the model gets to read with a `deny`.")
    rule: RuleEdit | Annotated[list[RuleEdit], Field(min_length=1, max_length=MAX_RULES)] | None = Field(
        default=None, description="With `allow_always`: what to allow instead of what the ask proposes."
    )
    scope: RuleScope | None = Field(
        default=None, description="With `allow_always`: where it applies; the session when not given."
    )

    @model_validator(mode="after")
    def _check_rules(self) -> "DecisionRequest":
        if self.decision != "allow_always" and (self.rule is not None or self.scope is not None):
            raise ValueError("`rule` and `scope` belong to `allow_always` only")
        return self


class ContentRequest(BaseModel, extra="forbid"):
    """The answers to questions, or to an elicitation of an MCP server."""

    content: dict[str, Any] = Field(
        description="By the id of each question: a text, or a list of texts; free text is always accepted. Of an "
        "elicitation: what its `requested_schema` asks for; `{}` agrees to open the page of its `url`."
    )


class RefusalRequest(BaseModel, extra="forbid"):
    """The refusal of questions or of an elicitation."""

    action: Literal["decline", "cancel"] = Field(description="`decline` refuses, `cancel` dismisses.")
    message: Message | None = Field(default=None, description="What the model gets to read.")


AnswerRequest = DecisionRequest | ContentRequest | RefusalRequest


def _form_of(body: Any) -> str | None:
    """The kind of answer, by the field that only this kind has."""
    return next((name for name in ("decision", "content", "action") if isinstance(body, dict) and name in body), None)


AnswerBody = Annotated[
    Annotated[DecisionRequest, Tag("decision")]
    | Annotated[ContentRequest, Tag("content")]
    | Annotated[RefusalRequest, Tag("action")],
    Discriminator(
        _form_of,
        custom_error_type="answer",
        custom_error_message="an answer has `decision`, or `content`, or `action`",
    ),
    Body(title="Said"),
]


@router.get("", response_model=Page[AskView])
async def list_asks(
    key: AskReader,
    services: ServicesDep,
    status: Annotated[AskStatus | None, Query(description="Only asks with this status.", examples=["open"])] = None,
    session: Annotated[str | None, Query(description="Only asks of this session.")] = None,
    call: Annotated[str | None, Query(description="Only asks of this call.")] = None,
    cursor: Annotated[str | None, Query(max_length=64, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Most asks on a page.")] = 50,
) -> Response:
    """Open and past asks, newest first."""
    filter = AskFilter(
        principal=key.sees,
        status=status,
        session=session,
        call=call,
        before=cursor,
        session_filter=services.sessions.session_filter(key),
    )
    page = await asks.page(services.engine, filter, limit + 1)
    return page_response(page, limit, cursor=lambda ask: ask.id, view=Ask.view)


@router.get("/{id}", response_model=AskView)
async def get_ask(id: AskId, key: AskReader, services: ServicesDep) -> Response:
    """One ask, with its answer if it has one."""
    return json_response((await _visible_ask(services, key, id)).view())


@router.post("/{id}/answer", response_model=AskView, responses=ENDED)
async def answer_ask(request: Request, id: AskId, body: AnswerBody, key: Answerer, services: ServicesDep) -> Response:
    """Answer an ask, once: the first answer counts, any other is a 409. The call continues, or ends, by itself."""
    ask = await _visible_ask(services, key, id)
    answer = _read_answer(body, ask)
    refuse_secrets(request, *(rule.pattern for rule in answer.rules))
    try:
        ended = await services.asks.answer(ask, answer, key)
    except AskEnded as error:
        if error.ask.is_open:
            services.dispatcher.live_calls.require_accepting()
        raise Problem(409, "AskEnded", str(error)) from None
    except AnswerRefused as error:
        raise Problem(403, "Forbidden", str(error)) from None
    return json_response(ended.view())


async def _visible_ask(services: Services, key: Key, id: str) -> Ask:
    """The ask, if this key may see it; else 404."""
    ask = await asks.get(services.engine, id, key.sees)
    if ask is None or not await services.sessions.shows_records(key, ask.principal, ask.session):
        raise not_found(f"ask {id}")
    return ask


def _read_answer(body: AnswerRequest, ask: Ask) -> Answer:
    """The answer, if it is of the kind that the ask needs."""
    if isinstance(body, DecisionRequest):
        if ask.kind is not AskKind.PERMISSION:
            raise _invalid(f"The ask {ask.id} is about no permission: answer with `content`, or refuse with `action`.")
        decision = Decision.ALLOW_ONCE if body.decision == "allow" else Decision(body.decision)
        return Answer(decision, body.message, _rules(body.rule, ask), body.scope)
    if ask.kind is AskKind.PERMISSION:
        raise _invalid(f"The ask {ask.id} is about a permission: answer with `decision`.")
    if isinstance(body, RefusalRequest):
        return Answer(action=body.action, message=body.message)
    return Answer(content=_check_content(body.content, ask))


def _check_content(content: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """The content as the tool or the MCP server that asked accepts it."""
    if ask.kind is AskKind.QUESTION:
        if error := misfit(content, ask.questions):
            raise _invalid(error)
        return content
    try:
        return elicitation_forms.read_answer(content, ask.metadata)
    except elicitation_forms.InvalidAnswer as unfit:
        raise _invalid(str(unfit)) from None


def _rules(edited: RuleEdit | list[RuleEdit] | None, ask: Ask) -> tuple[Rule, ...]:
    edits = edited if isinstance(edited, list) else [edited] if edited else []
    known = {need.permission for need in ask.needs}
    if len(known) != 1 and any(edit.permission is None for edit in edits):
        raise _invalid(f"Say for each rule whether it is about {' or '.join(sorted(known))}.")
    return tuple(Rule(edit.permission or next(iter(known)), edit.pattern, Action.ALLOW) for edit in edits)


def _invalid(detail: str) -> Problem:
    return Problem(422, "InvalidRequest", detail)
