"""Requests to create and change sessions, and how they change a session."""

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
"""The fields that restrict a session's calls."""

Word = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Domain = Annotated[str, Field(json_schema_extra={"pattern": DOMAIN, "maxLength": MAX_HOST + len("*.")})]
SecretName = Annotated[str, StringConstraints(pattern=NAME)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Text = Annotated[str, StringConstraints(max_length=32_768, pattern=r"^[^\x00]*$")]


class SecretReference(BaseModel, extra="forbid"):
    """A secret by its name."""

    secret: SecretName = Field(description="The secret's name.", examples=["MAIL_TOKEN"])


class DomainSecretRequest(BaseModel, extra="forbid"):
    """A secret that requests to a domain may contain."""

    domain: Domain = Field(description="The host it may be sent to.", examples=["api.example.com"])
    name: SecretName = Field(description="The secret's name, which is all a model sees.", examples=["API_KEY"])
    value: SecretStr | None = Field(
        default=None, description="Its value, to be stored as a secret of the principal; needs `secrets:write`."
    )


class AllowlistRequest(BaseModel, extra="forbid"):
    """Only the listed domains can be reached."""

    type: Literal["allowlist"] = Field(description="Always `allowlist`.")
    allowed_domains: list[Domain] = Field(
        default=[], max_length=MAX_DOMAINS, description="Hosts, each alone or with its subdomains (`*.`)."
    )
    domain_secrets: list[DomainSecretRequest] = Field(
        default=[], max_length=MAX_DOMAINS, description="Secrets that requests to a domain may contain."
    )


class DisabledRequest(BaseModel, extra="forbid"):
    """No host can be reached."""

    type: Literal["disabled"] = Field(description="Always `disabled`.")


PolicyRequest = Annotated[AllowlistRequest | DisabledRequest, Field(discriminator="type")]


class SessionChange(BaseModel, extra="forbid"):
    """The fields to change. A field that is left out stays; null clears it."""

    agent: Word | None = Field(default=None, description="The agent's name; rules may be made for it.")
    model: Word | None = Field(default=None, description="The model that uses the tools.", examples=["gpt-5.2"])
    approval: Approval | None = Field(default=None, description="The approval preset for its calls.")
    rules: Rules | None = Field(
        default=None,
        description="Permission rules. Those written by a key without `rules:write` can only tighten.",
    )
    network_policy: PolicyRequest | None = Field(
        default=None, description="Which hosts its tools may reach; it can only narrow what the operator allows."
    )
    profile: Profile | None = Field(
        default=None, description="Where its processes may write; it can only narrow what the operator allows."
    )
    env: Annotated[dict[Variable, Text | SecretReference], Field(max_length=MAX_ENV)] | None = Field(
        default=None, description='Environment of its processes: text, or `{"secret": name}`.'
    )
    labels: Annotated[dict[Word, Annotated[str, StringConstraints(max_length=1024)]], Field(max_length=MAX_LABELS)] | (
        None
    ) = Field(default=None, description="The caller's own data, returned as sent.")


class SessionRequest(SessionChange):
    """A session to create."""

    id: Annotated[str, StringConstraints(pattern=SESSION_ID)] | None = Field(
        default=None,
        description="Its name, unique for its principal; by default generated.",
        examples=["feature-1"],
    )
    workspace: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = Field(
        default=None,
        description=(
            "The folder it works in: one inside the service's workspace (a relative path starts there, `.` is the "
            "whole) or inside the operator's `workspace_roots`. A new folder is created when not given."
        ),
    )


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A secret value in a network policy."""

    name: str
    value: str
    domains: tuple[str, ...]


def apply_change(session: Session, body: SessionChange, key: Key) -> Session:
    """The session with the change, if this key may make it."""
    changed = body.model_fields_set
    require_power(session, changed, key)
    changes: dict[str, Any] = {field: getattr(body, field) for field in ("agent", "model", "approval", "profile")}
    changes["rules"] = tuple(line.rule() for line in body.rules or ())
    changes["network_policy"] = body.network_policy and policy_of(body.network_policy)
    changes["env"] = {
        name: value if isinstance(value, str) else {"secret": value.secret} for name, value in (body.env or {}).items()
    }
    changes["labels"] = body.labels or {}
    after = replace(session, **{field: value for field, value in changes.items() if field in changed})
    return replace(after, is_trusted=_is_trusted(session, changed, key))


def _is_trusted(session: Session, changed: set[str], key: Key) -> bool:
    """Rules are trusted when their writer is. A trusted key that does not change them does not make them trusted."""
    if not changed & {"rules", "approval"}:
        return session.is_trusted
    return key.may(Scope.RULES_WRITE) and ("rules" in changed or session.is_trusted or not session.rules)


def require_power(session: Session, changed: set[str], key: Key) -> None:
    """Only a key with `rules:write` may change restrictions that such a key has set."""
    if not session.is_trusted or key.may(Scope.RULES_WRITE) or not changed & set(BOUNDARIES):
        return
    restricted = [field for field in BOUNDARIES if getattr(session, field)]
    if restricted:
        raise Problem(
            403,
            "Forbidden",
            f"The {restricted[0]} of this session was set by a key with `rules:write`; only such a key may change its "
            "rules, approval or network policy, or delete it.",
        )


def policy_of(body: AllowlistRequest | DisabledRequest) -> NetworkPolicy:
    """The policy without secret values, with normalized domains."""
    if isinstance(body, DisabledRequest):
        return NetworkPolicy("disabled")
    domains = tuple(dict.fromkeys(_domain(one) for one in body.allowed_domains))
    secrets = tuple(DomainSecret(_domain(one.domain), one.name) for one in body.domain_secrets)
    return NetworkPolicy("allowlist", domains, secrets)


def new_secrets(body: SessionChange, key: Key) -> list[NewSecret]:
    """The secret values in the network policy, one for each name."""
    policy = body.network_policy
    with_value = [one for one in getattr(policy, "domain_secrets", ()) if one.value is not None]
    if with_value and not key.may(Scope.SECRETS_WRITE):
        raise Problem(403, "Forbidden", "A value in domain_secrets is stored as a secret; that needs `secrets:write`.")
    values, domains = dict[str, str](), defaultdict[str, list[str]](list)
    for one in with_value:
        value = one.value.get_secret_value()
        if values.setdefault(one.name, value) != value:
            raise _invalid(f"network_policy.domain_secrets: {one.name} has two values; use two names.")
        domains[one.name].append(_domain(one.domain))
    return [NewSecret(name, value, tuple(domains[name])) for name, value in values.items()]


def require_valid(
    session: Session, new: list[NewSecret], store: SecretStore, operator: NetworkPolicy | None, redactor: Redactor
) -> None:
    """Domains must be allowed, secrets must exist, and no secret may be in clear text."""
    policy = session.network_policy
    for domain in policy.allowed_domains if policy else ():
        if operator is not None and not operator.covers(domain):
            raise _invalid(
                f"network_policy.allowed_domains: {domain} is not allowed by the operator's network policy, "
                "which a session can only narrow."
            )
    known = {one.name for one in new}
    for one in policy.domain_secrets if policy else ():
        if one.name not in known:
            _require_secret(store, session.principal, one)
    for variable, value in session.env.items():
        if not isinstance(value, str) and store.find(session.principal, value["secret"]) is None:
            raise _invalid(f"env.{variable}: there is no secret {value['secret']}.")
    text = dumps(session.view()).decode()
    if redactor.finds(text):
        raise _invalid('The session has a secret in clear text; store it and use `{"secret": name}` in env.')
    if len(text.encode()) > MAX_BYTES:
        raise _invalid(f"A session takes at most {MAX_BYTES:,} bytes.")


async def store_secrets(store: SecretStore, principal: str, new: list[NewSecret]) -> None:
    """Store the new values as the principal's own secrets, each for its domains only."""
    for one in new:
        try:
            await store.put(principal, one.name, one.value, one.domains)
        except (InvalidSecret, SecretConfigured) as error:
            raise _invalid(f"network_policy.domain_secrets: {error}") from None


def _require_secret(store: SecretStore, principal: str, secret: DomainSecret) -> None:
    stored = store.find(principal, secret.name)
    if stored is None:
        raise _invalid(
            f"network_policy.domain_secrets: there is no secret {secret.name}; send its `value`, or store it first."
        )
    domains = stored[0].domains
    if domains and not any(includes(domain, secret.domain) for domain in domains):
        raise _invalid(f"network_policy.domain_secrets: {secret.name} may not be sent to {secret.domain}.")


def _domain(domain: str) -> str:
    try:
        return read_domains([domain])[0]
    except InvalidSecret as error:
        raise _invalid(f"network_policy: {error}") from None


def _invalid(message: str) -> Problem:
    return Problem(422, "InvalidRequest", message)
