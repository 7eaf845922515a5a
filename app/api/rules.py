"""Rules over HTTP: what was written while the service runs, by keys that may and by people's "always"."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, StringConstraints, model_validator

from app.api.auth import RuleReader, RuleWriter, Services, ServicesDep, session_seen
from app.api.http.body import JsonRoute
from app.api.http.problems import Problem, forbidden, not_found
from app.api.http.responses import json_response, list_response
from app.api.schemas.views import KeptRuleView, Page
from app.core.principals import Key, Scope
from app.core.redaction import Redactor
from app.core.rules import Action, Rule, RuleScope, StoredRule
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import InvalidSession
from app.dispatch.permission.rules import DEFAULT_WORKSPACE

router = APIRouter(prefix="/v1/rules", tags=["rules"], route_class=JsonRoute)

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Folder = Annotated[
    str, StringConstraints(max_length=4096, pattern=rf"^({DEFAULT_WORKSPACE}|/([^/\u0000][^\u0000]*)?)$")
]
NULL = {"type": "null"}
FORMS = [
    {"properties": {"scope": {"const": "global"}, "session": NULL, "workspace": NULL}},
    {
        "properties": {"scope": {"const": "workspace"}, "session": NULL, "workspace": {"type": "string"}},
        "required": ["scope", "workspace"],
    },
    {
        "properties": {
            "scope": {"const": "session"},
            "session": {"type": "string"},
            "workspace": NULL,
            "everybody": {"const": False},
        },
        "required": ["scope", "session"],
    },
]


class RuleRequest(BaseModel, extra="forbid", json_schema_extra={"anyOf": FORMS}):
    """A rule to keep. Of several that match, the newest counts."""

    permission: Text = Field(description="For what: `read`, `edit`, `shell` … or a tool's name.", examples=["read"])
    pattern: Text = Field(description="To what; `*` is any text, `?` any character.", examples=["deploy/*"])
    action: Action = Field(description="What happens.", examples=["ask"])
    scope: RuleScope = Field(default=RuleScope.GLOBAL, description="Where it counts.")
    session: Text | None = Field(default=None, description="The session, for the scope `session`.")
    workspace: Folder | None = Field(
        default=None, description="The folder, for the scope `workspace`; `default` is the service's own."
    )
    everybody: bool = Field(
        default=False,
        strict=True,
        description="For the calls of all principals instead of one's own; takes an admin key.",
    )

    @model_validator(mode="after")
    def _says_where(self) -> "RuleRequest":
        for scope, given in ((RuleScope.SESSION, self.session), (RuleScope.WORKSPACE, self.workspace)):
            if (self.scope is scope) != (given is not None):
                raise ValueError(f"the scope `{scope}` and a `{scope}` belong together")
        if self.everybody and self.session is not None:
            raise ValueError("a session has one owner, so its rules are not everybody's")
        return self


@router.get("", response_model=Page[KeptRuleView])
async def list_rules(
    key: RuleReader,
    services: ServicesDep,
    scope: Annotated[RuleScope | None, Query(description="Only rules of this scope.")] = None,
    session: Annotated[str | None, Query(description="Only rules of this session.")] = None,
) -> Response:
    """One's own rules, oldest first; an admin's list has everybody's."""
    known = [
        kept.view()
        for kept in services.rules.listed(key.sees)
        if scope in (None, kept.scope) and session in (None, kept.session) and await _is_shown(kept, key, services)
    ]
    return list_response(known)


@router.post("", response_model=KeptRuleView, status_code=201)
async def create_rule(request: Request, asked: RuleRequest, key: RuleWriter, services: ServicesDep) -> Response:
    """Keep a rule. It counts at once, also for what waits for a person. One's own rules turn ask into allow, or
    tighten; what the operator denies stays denied."""
    refuse_secrets(request, asked.permission, asked.pattern)
    if asked.everybody and not key.may(Scope.ADMIN):
        raise forbidden()
    if not key.bounds.allows_scope(asked.scope):
        raise _bound()
    if asked.session is not None:
        await session_seen(services, key, asked.session)
    workspace = (
        None if asked.workspace is None else await asyncio.to_thread(_located, asked.workspace, asked, key, services)
    )
    id, at = services.ids.new("rule")
    kept = StoredRule(
        id=id,
        principal=GLOBAL_PRINCIPAL if asked.everybody else key.principal,
        rule=Rule(asked.permission, asked.pattern, asked.action),
        scope=asked.scope,
        session=asked.session,
        workspace=workspace,
        created_by=key.id,
        created_at=at,
    )
    await services.rules.add(kept)
    return json_response(kept.view(), 201)


@router.delete("/{id}", status_code=204)
async def delete_rule(
    id: Annotated[str, Path(description="The rule's id.")], key: RuleWriter, services: ServicesDep
) -> Response:
    """Take a rule back, a person's "always" too. What was allowed by it is asked again from now on."""
    kept = services.rules.get(id, key.sees)
    if kept is None or not await _is_shown(kept, key, services):
        raise not_found(f"rule {id}")
    if not key.bounds.allows_scope(kept.scope):
        raise _bound()
    if not await services.rules.drop(id):
        raise not_found(f"rule {id}")
    return Response(status_code=204)


def refuse_secrets(request: Request, *texts: str) -> None:
    """A rule is kept as it is, so it must not hold what may not be kept."""
    redactor: Redactor = request.app.state.redactor
    if any(redactor.finds(text) for text in texts):
        raise Problem(422, "InvalidRequest", "A rule must not hold a secret; say it with a `*` instead.")


def _located(named: str, asked: RuleRequest, key: Key, services: Services) -> str:
    """The workspace as rules name it: as it really is, and one that sessions of this principal may have."""
    if named == DEFAULT_WORKSPACE:
        root: str | None = None
    else:
        try:
            root = (
                services.workspaces.real(named) if asked.everybody else services.workspaces.locate(key.principal, named)
            )
        except InvalidSession as error:
            raise Problem(403, "Forbidden", str(error)) from None
    if not key.bounds.allows_workspace(root or services.workspaces.home):
        raise _bound()
    return DEFAULT_WORKSPACE if root in (None, services.workspaces.home) else root


async def _is_shown(kept: StoredRule, key: Key, services: Services) -> bool:
    """Whether a key sees a rule: one of a session or workspace within its bounds, or one that counts everywhere."""
    if kept.session is not None:
        return await services.sessions.shows_records(key, kept.principal, kept.session)
    return kept.workspace is None or key.bounds.allows_workspace(_folder(kept.workspace, services))


def _folder(workspace: str, services: Services) -> str:
    return services.workspaces.home if workspace == DEFAULT_WORKSPACE else workspace


def _bound() -> Problem:
    return Problem(403, "Forbidden", "This key is bound to sessions or workspaces, and so are the rules it writes.")
