"""Permission rules over HTTP: those written at run time, by keys and by `allow_always` answers."""

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
    """A rule to store. Of several that match, the newest applies."""

    permission: Text = Field(description="`read`, `edit`, `shell` … or a tool's name.", examples=["read"])
    pattern: Text = Field(description="To what; `*` is any text, `?` any character.", examples=["deploy/*"])
    action: Action = Field(description="What happens.", examples=["ask"])
    scope: RuleScope = Field(default=RuleScope.GLOBAL, description="Where it applies.")
    session: Text | None = Field(default=None, description="The session, for the scope `session`.")
    workspace: Folder | None = Field(
        default=None, description="The folder, for the scope `workspace`; `default` is the service's own."
    )
    everybody: bool = Field(
        default=False,
        strict=True,
        description="For the calls of all principals instead of the key's own; needs an admin key.",
    )

    @model_validator(mode="after")
    def _check_scope(self) -> "RuleRequest":
        for scope, target in ((RuleScope.SESSION, self.session), (RuleScope.WORKSPACE, self.workspace)):
            if (self.scope is scope) != (target is not None):
                raise ValueError(f"the scope `{scope}` and a `{scope}` belong together")
        if self.everybody and self.session is not None:
            raise ValueError("a session has one owner, so its rules cannot be for everybody")
        return self


@router.get("", response_model=Page[KeptRuleView])
async def list_rules(
    key: RuleReader,
    services: ServicesDep,
    scope: Annotated[RuleScope | None, Query(description="Only rules of this scope.")] = None,
    session: Annotated[str | None, Query(description="Only rules of this session.")] = None,
) -> Response:
    """The principal's own rules, oldest first; for an admin the rules of all principals."""
    views = [
        rule.view()
        for rule in services.rules.listed(key.sees)
        if scope in (None, rule.scope) and session in (None, rule.session) and await _is_visible(rule, key, services)
    ]
    return list_response(views)


@router.post("", response_model=KeptRuleView, status_code=201)
async def create_rule(request: Request, body: RuleRequest, key: RuleWriter, services: ServicesDep) -> Response:
    """Store a rule. It applies at once, also to open asks. A principal's own rules can turn ask into allow or tighten;
    what the operator denies stays denied."""
    refuse_secrets(request, body.permission, body.pattern)
    if body.everybody and not key.may(Scope.ADMIN):
        raise forbidden()
    if not key.bounds.allows_scope(body.scope):
        raise _bound()
    if body.session is not None:
        await session_seen(services, key, body.session)
    workspace = None
    if body.workspace is not None:
        workspace = await asyncio.to_thread(_locate, body.workspace, body.everybody, key, services)
    id, at = services.ids.new("rule")
    rule = StoredRule(
        id=id,
        principal=GLOBAL_PRINCIPAL if body.everybody else key.principal,
        rule=Rule(body.permission, body.pattern, body.action),
        scope=body.scope,
        session=body.session,
        workspace=workspace,
        created_by=key.id,
        created_at=at,
    )
    await services.rules.add(rule)
    return json_response(rule.view(), 201)


@router.delete("/{id}", status_code=204)
async def delete_rule(
    id: Annotated[str, Path(description="The rule's id.")], key: RuleWriter, services: ServicesDep
) -> Response:
    """Delete a rule, also one made by `allow_always`. What it allowed is asked again from now on."""
    rule = services.rules.get(id, key.sees)
    if rule is None or not await _is_visible(rule, key, services):
        raise not_found(f"rule {id}")
    if not key.bounds.allows_scope(rule.scope):
        raise _bound()
    if not await services.rules.drop(id):
        raise not_found(f"rule {id}")
    return Response(status_code=204)


def refuse_secrets(request: Request, *texts: str) -> None:
    """Rules are stored in clear, so they must not contain secrets."""
    redactor: Redactor = request.app.state.redactor
    if any(redactor.finds(text) for text in texts):
        raise Problem(422, "InvalidRequest", "A rule must not contain a secret; write `*` in its place.")


def _locate(folder: str, everybody: bool, key: Key, services: Services) -> str:
    """The workspace as rules store it: with symlinks resolved, and one that the principal's sessions may use."""
    root: str | None = None
    if folder != DEFAULT_WORKSPACE:
        try:
            root = services.workspaces.real(folder) if everybody else services.workspaces.locate(key.principal, folder)
        except InvalidSession as error:
            raise Problem(403, "Forbidden", str(error)) from None
    if not key.bounds.allows_workspace(root or services.workspaces.home):
        raise _bound()
    return DEFAULT_WORKSPACE if root in (None, services.workspaces.home) else root


async def _is_visible(rule: StoredRule, key: Key, services: Services) -> bool:
    """Whether the rule's session or workspace is within the key's bounds; a rule with neither is."""
    if rule.session is not None:
        return await services.sessions.shows_records(key, rule.principal, rule.session)
    if rule.workspace is None:
        return True
    return key.bounds.allows_workspace(
        services.workspaces.home if rule.workspace == DEFAULT_WORKSPACE else rule.workspace
    )


def _bound() -> Problem:
    return Problem(403, "Forbidden", "This key is bound to sessions or workspaces, and so are the rules it writes.")
