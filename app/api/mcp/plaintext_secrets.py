"""What an MCP server is let in with, when it is sent in clear: kept as secrets, so that it is not shown again."""

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
from app.mcp.client.plaintext_secrets import SCHEME, PlaintextSecret, clear_values, covered

MOST = 64
Server = StdioServer | HttpServer


class Kept(NamedTuple):
    """A secret to keep instead of a value in clear."""

    name: str
    value: str
    domains: list[str]


@asynccontextmanager
async def kept_secrets(
    services: Services, owner: str | None, server: Server, before: Raw | None
) -> AsyncIterator[Server]:
    """The server with names of secrets instead of what came in clear. If it is not added, they are as they were.

    `before` is the definition that is replaced; its secrets that are not needed any more go with it.
    """
    sealed, wanted = _sealed(server)
    principal = _keeper(owner)
    old = _made_for(before)
    undo: list[tuple[str, Any]] = []
    try:
        for one in wanted:
            undo.append((one.name, await _keep(services, principal, one, is_ours=one.name in old)))
        yield sealed
    except BaseException:
        for name, held in undo:
            await _put_back(services, principal, name, held)
        raise
    for name in old - _made_for(sealed.model_dump()):
        await services.secrets.remove(principal, name)


async def forget_secrets(services: Services, owner: str | None, definition: Raw | None) -> None:
    """The server is gone, and what was kept for it alone goes too."""
    for name in _made_for(definition):
        await services.secrets.remove(_keeper(owner), name)


def shown(view: Raw) -> Raw:
    """A server's view with a mark where its definition, written by the operator, holds a secret in clear."""
    definition = view.get("definition")
    if definition is None:
        return view
    return view | {"definition": covered(definition, clear_values(servers.validate_python(definition)))}


def _keeper(owner: str | None) -> str:
    """Whose secrets a server's are. Those of everybody's are the admin's: who may use its tools need not be able to
    send its token."""
    return owner or ADMIN_PRINCIPAL


def _sealed(server: Server) -> tuple[Server, list[Kept]]:
    kept: dict[tuple[str, str], Kept] = {}
    domains = [_domain(server.url)] if isinstance(server, HttpServer) else []
    for one in clear_values(server):
        if one.field in ("args", "url"):
            raise InvalidServer(
                f"{one.field}: {one.name or 'a part of it'} looks like a secret, and this would be shown; "
                "send it in `env` or `headers` instead, by the name of a secret"
            )
        kept[one.field, one.name] = Kept(secret_name(server.name, one.name), _value(one), domains)
    return server.model_copy(update=dict(_changes(server, kept))), list(kept.values())


def _changes(server: Server, kept: dict[tuple[str, str], Kept]) -> Iterator[tuple[str, Any]]:
    """The fields that are others now."""
    if isinstance(server, StdioServer):
        named = {name: SecretValue(secret=one.name) for (_, name), one in kept.items()}
        yield "env", server.env | named
        return
    headers: dict[str, Any] = dict(server.headers)
    for (field, name), one in kept.items():
        if field == "auth":
            yield "auth", BearerAuth(secret=one.name)
        else:
            form = "bearer" if one.value != headers[name] else "plain"
            headers[name] = SecretHeader(secret=one.name, form=form)
    yield "headers", headers


def _value(one: PlaintextSecret) -> str:
    """What is kept: of `Bearer …` only the token, which is put together again when it is sent."""
    found = SCHEME.fullmatch(one.value)
    return found["token"] if found and found["scheme"].lower() == "bearer" and one.field == "headers" else one.value


def _domain(url: str) -> str:
    host = read_url(url).host
    if ":" in host:
        raise InvalidServer("a secret can be kept for a host with a name or an IPv4 address only; use one of those")
    return host


def secret_name(server: str, part: str) -> str:
    """What a secret of a server is called; a long name is cut, and told apart by its digest."""
    name = f"mcp_{server}_{re.sub(r'[^A-Za-z0-9_.-]', '_', part)}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= MOST else f"{name[: MOST - 9]}_{digest}"


def _made_for(definition: Raw | None) -> set[str]:
    """The secrets in a definition that have the names we would give them."""
    if definition is None:
        return set()
    server = definition["name"]
    named = {**(definition.get("env") or {}), **(definition.get("headers") or {})}
    pairs = {part: value["secret"] for part, value in named.items() if isinstance(value, dict)}
    pairs["token"] = (definition.get("auth") or {}).get("secret")
    return {secret for part, secret in pairs.items() if secret == secret_name(server, part)}


async def _keep(services: Services, principal: str, one: Kept, *, is_ours: bool) -> Any:
    """Keep it; the answer is what was there before. What somebody else keeps by this name is not touched."""
    found = services.secrets.find(principal, one.name)
    held = found if found and found[0].principal == principal else None
    if found is not None and not is_ours:
        raise Problem(
            409,
            "SecretTaken",
            f"There is a secret {one.name} already; send its name instead of a value, or remove it.",
        )
    try:
        await services.secrets.put(principal, one.name, one.value, one.domains)
    except InvalidSecret as error:
        raise InvalidServer(f"what came in clear cannot be kept as a secret: {str(error).rstrip('.')}") from None
    return held


async def _put_back(services: Services, principal: str, name: str, held: Any) -> None:
    if held is None:
        await services.secrets.remove(principal, name)
    else:
        await services.secrets.put(principal, name, held[1], held[0].domains)
