"""Asks over HTTP: one flat list of everything that waits for a person, and how they answer."""

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
MOST_RULES = 32
ALWAYS_ONLY = [
    {"properties": {"decision": {"const": "allow_always"}}},
    {"properties": {"rule": {"type": "null"}, "scope": {"type": "null"}}},
]
ENDED: dict[int | str, dict[str, Any]] = {409: {"description": "It has its answer, or its time is over."}}


class RuleEdit(BaseModel, extra="forbid"):
    """A rule that an `allow_always` makes instead of the one the ask shows."""

    permission: Text | None = Field(
        default=None, description="For what; may be left out when the ask is about one permission only."
    )
    pattern: Text = Field(description="The edited pattern.", examples=["deploy/*"])


class DecisionRequest(BaseModel, extra="forbid", json_schema_extra={"anyOf": ALWAYS_ONLY}):
    """The answer to a permission."""

    decision: Literal["allow", "allow_once", "allow_always", "deny"] = Field(
        description="`allow` is `allow_once`; `allow_always` makes rules, and takes a key with `rules:write`."
    )
    message: Message | None = Field(default=None, description="What the model is told along with a no.")
    rule: RuleEdit | Annotated[list[RuleEdit], Field(min_length=1, max_length=MOST_RULES)] | None = Field(
        default=None, description="With `allow_always`: what to allow instead of what the ask shows."
    )
    scope: RuleScope | None = Field(
        default=None, description="With `allow_always`: where it counts; the session when not given."
    )

    @model_validator(mode="after")
    def _makes_rules_only_with_always(self) -> "DecisionRequest":
        if self.decision != "allow_always" and (self.rule is not None or self.scope is not None):
            raise ValueError("`rule` and `scope` belong to `allow_always` only")
        return self


class ContentRequest(BaseModel, extra="forbid"):
    """The answers to questions, or the form that an MCP server wants filled in."""

    content: dict[str, Any] = Field(
        description="By the id of each question: a text, or a list of texts. Own words are always an answer. Of an "
        "elicitation: what its `requested_schema` asks for; `{}` agrees to open the page of its `url`."
    )


class RefusalRequest(BaseModel, extra="forbid"):
    """No answer to questions or an elicitation, and none will come."""

    action: Literal["decline", "cancel"] = Field(description="`decline` says no, `cancel` goes away.")
    message: Message | None = Field(default=None, description="What the model is told.")


AnswerRequest = DecisionRequest | ContentRequest | RefusalRequest


def _form_of(body: Any) -> str | None:
    """Which kind of answer a body is, by the one field that makes it so."""
    return next((name for name in ("decision", "content", "action") if isinstance(body, dict) and name in body), None)


Answered = Annotated[
    Annotated[DecisionRequest, Tag("decision")]
    | Annotated[ContentRequest, Tag("content")]
    | Annotated[RefusalRequest, Tag("action")],
    Discriminator(
        _form_of,
        custom_error_type="answer",
        custom_error_message="an answer has `decision`, or `content`, or `action`",
    ),
    Body(),
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
    """What waits for a person, and what did, newest first."""
    wanted = AskFilter(
        principal=key.sees,
        status=status,
        session=session,
        call=call,
        before=cursor,
        session_filter=services.sessions.session_filter(key),
    )
    page = await asks.page(services.engine, wanted, limit + 1)
    return page_response(page, limit, cursor=lambda ask: ask.id, view=Ask.view)


@router.get("/{id}", response_model=AskView)
async def get_ask(id: AskId, key: AskReader, services: ServicesDep) -> Response:
    """One ask, with its answer if it has one."""
    return json_response((await _seen(services, key, id)).view())


@router.post("/{id}/answer", response_model=AskView, responses=ENDED)
async def answer_ask(request: Request, id: AskId, said: Answered, key: Answerer, services: ServicesDep) -> Response:
    """Answer an ask, once: the first answer counts, any other is a 409. The call goes on, or ends, by itself."""
    ask = await _seen(services, key, id)
    answer = _answer(said, ask)
    refuse_secrets(request, *(rule.pattern for rule in answer.rules))
    try:
        ended = await services.asks.answer(ask, answer, key)
    except AskEnded as over:
        if over.ask.is_open:
            services.dispatcher.running.require_accepting()
        raise Problem(409, "AskEnded", str(over)) from None
    except AnswerRefused as refused:
        raise Problem(403, "Forbidden", str(refused)) from None
    return json_response(ended.view())


async def _seen(services: Services, key: Key, id: str) -> Ask:
    """The ask, if this key may see it; what it may not see is not there."""
    ask = await asks.get(services.engine, id, key.sees)
    if ask is None or not await services.sessions.shows_records(key, ask.principal, ask.session):
        raise not_found(f"ask {id}")
    return ask


def _answer(said: AnswerRequest, ask: Ask) -> Answer:
    """What was said, if it is an answer to what was asked."""
    if isinstance(said, DecisionRequest):
        if ask.kind is not AskKind.PERMISSION:
            raise _unfitting(
                f"The ask {ask.id} is about no permission: answer with `content`, or refuse with `action`."
            )
        decision = Decision.ALLOW_ONCE if said.decision == "allow" else Decision(said.decision)
        return Answer(decision, said.message, _rules(said.rule, ask), said.scope)
    if ask.kind is AskKind.PERMISSION:
        raise _unfitting(f"The ask {ask.id} is about a permission: answer with `decision`.")
    if isinstance(said, RefusalRequest):
        return Answer(action=said.action, message=said.message)
    return Answer(content=_filled(said.content, ask))


def _filled(content: dict[str, Any], ask: Ask) -> dict[str, Any]:
    """What was filled in, as whoever asked takes it."""
    if ask.kind is AskKind.QUESTION:
        if wrong := misfit(content, ask.questions):
            raise _unfitting(wrong)
        return content
    try:
        return elicitation_forms.filled(content, ask.metadata)
    except elicitation_forms.Unfit as unfit:
        raise _unfitting(str(unfit)) from None


def _rules(edited: RuleEdit | list[RuleEdit] | None, ask: Ask) -> tuple[Rule, ...]:
    edits = edited if isinstance(edited, list) else [edited] if edited else []
    known = {need.permission for need in ask.needs}
    if len(known) != 1 and any(edit.permission is None for edit in edits):
        raise _unfitting(f"Say for each rule whether it is about {' or '.join(sorted(known))}.")
    return tuple(Rule(edit.permission or next(iter(known)), edit.pattern, Action.ALLOW) for edit in edits)


def _unfitting(detail: str) -> Problem:
    return Problem(422, "InvalidRequest", detail)
