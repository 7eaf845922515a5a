"""Credentials that are sent in clear text in a server definition are stored as secrets and not shown again."""

import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from app.api.auth import Services
from app.api.http.problems import Problem
from app.core.custom_tools import SecretHeader
from app.core.mcp_servers import BearerAuth, HttpServer, InvalidServer, SecretValue, StdioServer, servers
from app.core.principals import ADMIN_PRINCIPAL
from app.core.secrets import InvalidSecret
from app.core.util.json_codec import Raw
from app.core.util.urls import read_url
from app.mcp.client.plaintext_secrets import SCHEME, PlaintextSecret, find_plaintext_secrets, mask_secrets

MAX_NAME_LENGTH = 64
Server = StdioServer | HttpServer


class NewSecret(NamedTuple):
    """A secret to store instead of a value in clear text."""

    name: str
    value: str
    domains: list[str]


@asynccontextmanager
async def stored_secrets(
    services: Services, owner: str | None, server: Server, before: Raw | None
) -> AsyncIterator[Server]:
    """The server with names of secrets instead of clear text. If adding it fails, the secrets are restored.

    `before` is the definition that is replaced; its secrets that are not used any more are removed.
    """
    named, new_secrets = _extract_secrets(server)
    principal = _secrets_owner(owner)
    old = _own_secrets(before)
    undo: list[tuple[str, Any]] = []
    try:
        for new in new_secrets:
            undo.append((new.name, await _store(services, principal, new, is_ours=new.name in old)))
        yield named
    except BaseException:
        for name, previous in undo:
            if previous is None:
                await services.secrets.remove(principal, name)
            else:
                await services.secrets.put(principal, name, previous[1], previous[0].domains)
        raise
    for name in old - _own_secrets(named.model_dump()):
        await services.secrets.remove(principal, name)


async def delete_secrets(services: Services, owner: str | None, definition: Raw | None) -> None:
    """Delete the secrets that were stored for a removed server alone."""
    for name in _own_secrets(definition):
        await services.secrets.remove(_secrets_owner(owner), name)


def masked(view: Raw) -> Raw:
    """A server's view with secrets masked that the operator wrote into its definition in clear text."""
    definition = view.get("definition")
    if definition is None:
        return view
    return view | {"definition": mask_secrets(definition, find_plaintext_secrets(servers.validate_python(definition)))}


def _secrets_owner(owner: str | None) -> str:
    """The principal who owns a server's secrets. Those of a global server are the admin's: keys that may use its tools
    need not be able to send its token."""
    return owner or ADMIN_PRINCIPAL


def _extract_secrets(server: Server) -> tuple[Server, list[NewSecret]]:
    secrets: dict[tuple[str, str], NewSecret] = {}
    domains = [_domain(server.url)] if isinstance(server, HttpServer) else []
    for one in find_plaintext_secrets(server):
        if one.field in ("args", "url"):
            raise InvalidServer(
                f"{one.field}: {one.name or 'a part of it'} looks like a secret, and this is shown to clients; "
                "send it in `env` or `headers` instead, as the name of a secret"
            )
        secrets[one.field, one.name] = NewSecret(secret_name(server.name, one.name), _value(one), domains)
    return server.model_copy(update=dict(_changes(server, secrets))), list(secrets.values())


def _changes(server: Server, secrets: dict[tuple[str, str], NewSecret]) -> Iterator[tuple[str, Any]]:
    if isinstance(server, StdioServer):
        named = {name: SecretValue(secret=one.name) for (_, name), one in secrets.items()}
        yield "env", server.env | named
        return
    headers: dict[str, Any] = dict(server.headers)
    for (field, name), one in secrets.items():
        if field == "auth":
            yield "auth", BearerAuth(secret=one.name)
        else:
            form = "bearer" if one.value != headers[name] else "plain"
            headers[name] = SecretHeader(secret=one.name, form=form)
    yield "headers", headers


def _value(one: PlaintextSecret) -> str:
    """The value to store: of `Bearer …` only the token."""
    match = SCHEME.fullmatch(one.value)
    return match["token"] if match and match["scheme"].lower() == "bearer" and one.field == "headers" else one.value


def _domain(url: str) -> str:
    host = read_url(url).host
    if ":" in host:
        raise InvalidServer("a secret can only be stored for a host name or an IPv4 address; use one of those")
    return host


def secret_name(server: str, part: str) -> str:
    """The name of a server's secret; a long one is cut and made unique by a digest."""
    name = f"mcp_{server}_{re.sub(r'[^A-Za-z0-9_.-]', '_', part)}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 9]}_{digest}"


def _own_secrets(definition: Raw | None) -> set[str]:
    """The secrets in a definition that `secret_name` has named."""
    if definition is None:
        return set()
    server = definition["name"]
    named = {**(definition.get("env") or {}), **(definition.get("headers") or {})}
    pairs = {part: value["secret"] for part, value in named.items() if isinstance(value, dict)}
    pairs["token"] = (definition.get("auth") or {}).get("secret")
    return {secret for part, secret in pairs.items() if secret == secret_name(server, part)}


async def _store(services: Services, principal: str, new: NewSecret, *, is_ours: bool) -> Any:
    """Store a secret and return the one it replaces. A secret of this name that is not the server's is an error."""
    existing = services.secrets.find(principal, new.name)
    previous = existing if existing and existing[0].principal == principal else None
    if existing is not None and not is_ours:
        raise Problem(
            409,
            "SecretTaken",
            f"There is a secret {new.name} already; send its name instead of a value, or remove it.",
        )
    try:
        await services.secrets.put(principal, new.name, new.value, new.domains)
    except InvalidSecret as error:
        raise InvalidServer(f"a clear-text value cannot be stored as a secret: {str(error).rstrip('.')}") from None
    return previous
