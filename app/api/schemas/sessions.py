"""Sessions as they are asked for: the shapes, and what they make of a session. Who writes decides how far it counts."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SecretStr, StringConstraints

from app.api.http.problems import Problem
from app.api.key_bounds import Rules
from app.core.network_policy import DomainSecret, NetworkPolicy, includes
from app.core.principals import Key, Scope
from app.core.redaction import Redactor
from app.core.rules import Approval
from app.core.secrets import DOMAIN, NAME, InvalidSecret, SecretConfigured, read_domains
from app.core.sessions import SESSION_ID, Profile, Session
from app.core.util.json_codec import dumps
from app.core.util.urls import MAX_HOST
from app.store.secrets import SecretStore

MAX_DOMAINS = 256
MAX_ENV = 128
MAX_LABELS = 32
MAX_BYTES = 65_536
BOUNDARIES = ("rules", "approval", "network_policy", "profile")
"""What keeps a session's calls in."""

Word = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Domain = Annotated[str, Field(json_schema_extra={"pattern": DOMAIN, "maxLength": MAX_HOST + len("*.")})]
SecretName = Annotated[str, StringConstraints(pattern=NAME)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Text = Annotated[str, StringConstraints(max_length=32_768, pattern=r"^[^\x00]*$")]


class SecretReference(BaseModel, extra="forbid"):
    """A secret by its name."""

    secret: SecretName = Field(description="The name of the secret whose value it gets.", examples=["MAIL_TOKEN"])


class DomainSecretRequest(BaseModel, extra="forbid"):
    """A secret that requests to a domain may carry."""

    domain: Domain = Field(description="The host it may go to.", examples=["api.example.com"])
    name: SecretName = Field(description="The secret's name, which is all a model sees.", examples=["API_KEY"])
    value: SecretStr | None = Field(
        default=None, description="Its value, to be kept as a secret of one's own; needs `secrets:write`."
    )


class AllowlistRequest(BaseModel, extra="forbid"):
    """Only the listed domains can be reached."""

    type: Literal["allowlist"] = Field(description="Always `allowlist`.")
    allowed_domains: list[Domain] = Field(
        default=[], max_length=MAX_DOMAINS, description="Hosts, each alone or with all below it (`*.`)."
    )
    domain_secrets: list[DomainSecretRequest] = Field(
        default=[], max_length=MAX_DOMAINS, description="Secrets that requests to a domain may carry."
    )


class DisabledRequest(BaseModel, extra="forbid"):
    """No host can be reached."""

    type: Literal["disabled"] = Field(description="Always `disabled`.")


PolicyRequest = Annotated[AllowlistRequest | DisabledRequest, Field(discriminator="type")]


class SessionChange(BaseModel, extra="forbid"):
    """What is to be different. What is left out stays; null takes it away."""

    agent: Word | None = Field(default=None, description="The agent's name; rules may be made for it.")
    model: Word | None = Field(default=None, description="The model that uses the tools.", examples=["gpt-5.2"])
    approval: Approval | None = Field(default=None, description="The approval preset for its calls.")
    rules: Rules | None = Field(
        default=None,
        description="Permission rules. They loosen only when a key with `rules:write` wrote them, else they tighten.",
    )
    network_policy: PolicyRequest | None = Field(
        default=None, description="Which hosts its tools may reach; it can only narrow what the operator allows."
    )
    profile: Profile | None = Field(
        default=None, description="Where its processes may write; it can only narrow what the operator lets them."
    )
    env: Annotated[dict[Variable, Text | SecretReference], Field(max_length=MAX_ENV)] | None = Field(
        default=None, description='Environment of its processes: text, or `{"secret": name}`.'
    )
    labels: Annotated[dict[Word, Annotated[str, StringConstraints(max_length=1024)]], Field(max_length=MAX_LABELS)] | (
        None
    ) = Field(default=None, description="The caller's own facts; kept and given back.")


class SessionRequest(SessionChange):
    """A session to make."""

    id: Annotated[str, StringConstraints(pattern=SESSION_ID)] | None = Field(
        default=None, description="Its name, unique for its principal; made up when not given.", examples=["feature-1"]
    )
    workspace: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = Field(
        default=None,
        description=(
            "The folder it works in: one inside the service's workspace (a relative path starts there, `.` is the "
            "whole) or inside the operator's `workspace_roots`. A fresh folder is made when not given."
        ),
    )


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A value that came with a network policy."""

    name: str
    value: str
    domains: tuple[str, ...]


def edited(session: Session, asked: SessionChange, key: Key) -> Session:
    """The session with what was asked for, as far as this key may."""
    named = asked.model_fields_set
    require_power(session, named, key)
    changes: dict[str, Any] = {field: getattr(asked, field) for field in ("agent", "model", "approval", "profile")}
    changes["rules"] = tuple(line.rule() for line in asked.rules or ())
    changes["network_policy"] = asked.network_policy and policy_of(asked.network_policy)
    changes["env"] = {
        name: value if isinstance(value, str) else {"secret": value.secret} for name, value in (asked.env or {}).items()
    }
    changes["labels"] = asked.labels or {}
    after = replace(session, **{field: value for field, value in changes.items() if field in named})
    return replace(after, is_trusted=_is_trusted(session, named, key))


def _is_trusted(session: Session, named: set[str], key: Key) -> bool:
    """Rules count for as much as their writer may. A trusted writer who leaves them as they are does not lift them."""
    if not named & {"rules", "approval"}:
        return session.is_trusted
    return key.may(Scope.RULES_WRITE) and ("rules" in named or session.is_trusted or not session.rules)


def require_power(session: Session, named: set[str], key: Key) -> None:
    """What a key that may loosen has set, others do not take away: that would loosen too."""
    if not session.is_trusted or key.may(Scope.RULES_WRITE) or not named & set(BOUNDARIES):
        return
    held = [field for field in BOUNDARIES if getattr(session, field)]
    if held:
        raise Problem(
            403,
            "Forbidden",
            f"The {held[0]} of this session was set by a key with `rules:write`; only such a key may change its "
            "rules, approval or network policy, or delete it.",
        )


def policy_of(asked: AllowlistRequest | DisabledRequest) -> NetworkPolicy:
    """The policy without values, its domains as they are compared later."""
    if isinstance(asked, DisabledRequest):
        return NetworkPolicy("disabled")
    domains = tuple(dict.fromkeys(_domain(one) for one in asked.allowed_domains))
    secrets = tuple(DomainSecret(_domain(one.domain), one.name) for one in asked.domain_secrets)
    return NetworkPolicy("allowlist", domains, secrets)


def new_secrets(asked: SessionChange, key: Key) -> list[NewSecret]:
    """The values that came along, one for each name."""
    policy = asked.network_policy
    given = [one for one in getattr(policy, "domain_secrets", ()) if one.value is not None]
    if given and not key.may(Scope.SECRETS_WRITE):
        raise Problem(403, "Forbidden", "A value in domain_secrets is kept as a secret; that needs `secrets:write`.")
    values, domains = dict[str, str](), defaultdict[str, list[str]](list)
    for one in given:
        value = one.value.get_secret_value()
        if values.setdefault(one.name, value) != value:
            raise _misfit(f"network_policy.domain_secrets: {one.name} has two values; use two names.")
        domains[one.name].append(_domain(one.domain))
    return [NewSecret(name, value, tuple(domains[name])) for name, value in values.items()]


def require_fit(
    session: Session, fresh: list[NewSecret], book: SecretStore, operator: NetworkPolicy | None, redactor: Redactor
) -> None:
    """What was asked for must be allowed, be there, and hold no secret in clear."""
    policy = session.network_policy
    for domain in policy.allowed_domains if policy else ():
        if operator is not None and not operator.covers(domain):
            raise _misfit(
                f"network_policy.allowed_domains: {domain} is not allowed by the operator's network policy, "
                "which a session can only narrow."
            )
    known = {one.name for one in fresh}
    for one in policy.domain_secrets if policy else ():
        if one.name not in known:
            _require_secret(book, session.principal, one)
    for variable, value in session.env.items():
        if not isinstance(value, str) and book.find(session.principal, value["secret"]) is None:
            raise _misfit(f"env.{variable}: there is no secret {value['secret']}.")
    text = dumps(session.view()).decode()
    if redactor.finds(text):
        raise _misfit('A secret stands in the session in clear; keep it as a secret and use `{"secret": name}` in env.')
    if len(text.encode()) > MAX_BYTES:
        raise _misfit(f"A session takes at most {MAX_BYTES:,} bytes.")


async def keep_secrets(book: SecretStore, principal: str, fresh: list[NewSecret]) -> None:
    """Keep the values that came along as the principal's own secrets, each for its domains only."""
    for one in fresh:
        try:
            await book.put(principal, one.name, one.value, one.domains)
        except (InvalidSecret, SecretConfigured) as error:
            raise _misfit(f"network_policy.domain_secrets: {error}") from None


def _require_secret(book: SecretStore, principal: str, wanted: DomainSecret) -> None:
    found = book.find(principal, wanted.name)
    if found is None:
        raise _misfit(
            f"network_policy.domain_secrets: there is no secret {wanted.name}; send its `value`, or keep it first."
        )
    domains = found[0].domains
    if domains and not any(includes(domain, wanted.domain) for domain in domains):
        raise _misfit(f"network_policy.domain_secrets: {wanted.name} may not be sent to {wanted.domain}.")


def _domain(given: str) -> str:
    try:
        return read_domains([given])[0]
    except InvalidSecret as error:
        raise _misfit(f"network_policy: {error}") from None


def _misfit(sentence: str) -> Problem:
    return Problem(422, "InvalidRequest", sentence)
