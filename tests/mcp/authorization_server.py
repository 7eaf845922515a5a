"""An issuer of tokens and a server that wants them, on loopback: strict about what clients must do; bad on demand."""

import asyncio
import base64
import hashlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"


@asynccontextmanager
async def served(make: Callable[[str], ASGIApp], port: int = 0) -> AsyncIterator[str]:
    """An application on a free port of this machine, made when its origin is known. It has no lifespan."""
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("127.0.0.1", port))
    origin = f"http://127.0.0.1:{door.getsockname()[1]}"
    config = uvicorn.Config(make(origin), lifespan="off", log_config=None, access_log=False, ws="none")
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[door])
    try:
        yield origin
    finally:
        server.force_exit = True
        async with asyncio.timeout(20):
            await server.shutdown(sockets=[door])


@dataclass
class Granted:
    """What a token is good for."""

    client: str
    scope: str
    resource: str
    until: float = 0.0


@dataclass
class Issuer:
    """An authorization server. The person who comes by says yes at once, or what `verdict` says."""

    origin: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    lifetime: int | None = 3600
    rotates: bool = True
    gives_refresh: bool = True
    sends_iss: bool = True
    iss: str | None = None
    verdict: str | None = None
    fails: int | None = None
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    access: dict[str, Granted] = field(default_factory=dict)
    refresh: dict[str, Granted] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    everything: set[str] = field(default_factory=set)
    """All that must not be found anywhere: tokens, codes, secrets."""

    def routes(self) -> list[Route]:
        return [
            Route("/.well-known/oauth-authorization-server", self._about),
            Route("/register", self._register, methods=["POST"]),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
        ]

    def app(self, origin: str) -> ASGIApp:
        self.origin = origin
        return Starlette(routes=self.routes())

    def add_client(self, id: str, secret: str | None = None, method: str = "client_secret_basic") -> None:
        """Somebody the operator registered by hand."""
        self.clients[id] = {"client_secret": secret, "token_endpoint_auth_method": method, "redirect_uris": None}

    def knows(self, header: str | None) -> Granted | None:
        """What an Authorization header is good for."""
        granted = self.access.get((header or "").removeprefix("Bearer "))
        return granted if granted is not None and time.time() < granted.until else None

    def count(self, path: str) -> int:
        return sum(one == path for one, _ in self.asked)

    def of(self, path: str) -> dict[str, Any]:
        """The last request to a path."""
        return [form for one, form in self.asked if one == path][-1]

    async def _about(self, request: Request) -> Response:
        about = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": self.sends_iss,
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
        }
        about |= self.metadata
        return JSONResponse({name: value for name, value in about.items() if value is not None})

    async def _register(self, request: Request) -> Response:
        about = await request.json()
        self.asked.append(("/register", about))
        id = f"client-{len(self.clients)}"
        secret = None if about["token_endpoint_auth_method"] == "none" else self._new("client_secret")
        self.clients[id] = about | {"client_secret": secret}
        return JSONResponse(about | {"client_id": id, "client_secret": secret}, 201)

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.asked.append(("/authorize", asked))
        known = self.clients[asked["client_id"]]["redirect_uris"]
        if known is not None and asked["redirect_uri"] not in known:
            return Response("an unknown redirect_uri", 400)
        answer = {"state": asked["state"]}
        if self.verdict is not None:
            answer["error"] = self.verdict
        else:
            answer["code"] = self._new("code")
            self.codes[answer["code"]] = asked
        if self.sends_iss:
            answer["iss"] = self.iss or self.origin
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}", 302)

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        self.asked.append(("/token", form))
        if self.fails is not None:
            return Response("not now", self.fails)
        client = self._client(request, form)
        if client is None:
            return _no("invalid_client", 401)
        match form.get("grant_type"):
            case "authorization_code":
                return self._for_code(client, form)
            case "refresh_token":
                return self._for_refresh(client, form)
            case "client_credentials" if self.clients[client]["client_secret"]:
                return self._give(Granted(client, form.get("scope", ""), form["resource"]), refresh=None)
        return _no("unsupported_grant_type")

    def _client(self, request: Request, form: dict[str, str]) -> str | None:
        """Who asks, if they prove it in the way that was agreed on, and in no other."""
        known = self.clients.get(form.get("client_id", ""))
        if known is None:
            return None
        kind, _, pair = request.headers.get("Authorization", "").partition(" ")
        in_header = base64.b64decode(pair).decode() if kind == "Basic" else None
        match known["token_endpoint_auth_method"]:
            case "client_secret_basic":
                id, _, secret = (in_header or ":").partition(":")
                is_proven = (unquote(id), unquote(secret)) == (form["client_id"], known["client_secret"])
                is_proven = is_proven and "client_secret" not in form
            case "client_secret_post":
                is_proven = in_header is None and form.get("client_secret") == known["client_secret"]
            case _:
                is_proven = in_header is None and "client_secret" not in form
        return form["client_id"] if is_proven else None

    def _for_code(self, client: str, form: dict[str, str]) -> Response:
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None:
            return _no("invalid_grant")
        proof = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        self.everything.add(form["code_verifier"])
        agrees = (
            asked["client_id"] == client
            and asked["redirect_uri"] == form["redirect_uri"]
            and (asked["code_challenge_method"], asked["code_challenge"]) == ("S256", proof)
            and asked["resource"] == form["resource"]
        )
        if not agrees:
            return _no("invalid_grant")
        return self._give(Granted(client, asked.get("scope", ""), asked["resource"]))

    def _for_refresh(self, client: str, form: dict[str, str]) -> Response:
        token = form["refresh_token"]
        granted = self.refresh.get(token)
        if granted is None or granted.client != client or granted.resource != form["resource"]:
            return _no("invalid_grant")
        if not self.rotates:
            return self._give(granted, refresh=None)
        del self.refresh[token]
        return self._give(granted)

    def _give(self, granted: Granted, refresh: str | None = "new") -> Response:
        token = self._new("access")
        until = time.time() + (3600 if self.lifetime is None else self.lifetime)
        self.access[token] = Granted(granted.client, granted.scope, granted.resource, until)
        answer: dict[str, Any] = {"access_token": token, "token_type": "bearer", "scope": granted.scope or None}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if refresh is not None and self.gives_refresh:
            answer["refresh_token"] = self._new("refresh")
            self.refresh[answer["refresh_token"]] = granted
        return JSONResponse({name: value for name, value in answer.items() if value is not None})

    def _new(self, kind: str) -> str:
        made = f"{kind}-{secrets.token_urlsafe(24)}"
        self.everything.add(made)
        return made


def _no(error: str, status: int = 400) -> Response:
    return JSONResponse({"error": error, "error_description": "and no word more"}, status)


@dataclass
class Resource:
    """What a server that wants tokens publishes of itself."""

    issuer: Issuer
    origin: str = ""
    about: dict[str, Any] | None = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    @property
    def challenge(self) -> str:
        return f'Bearer error="invalid_token", resource_metadata="{self.origin}{RESOURCE_METADATA}"'

    def routes(self) -> list[Route]:
        return [Route(RESOURCE_METADATA, self._about)]

    def app(self, origin: str) -> ASGIApp:
        self.origin = origin
        return Starlette(routes=self.routes())

    def with_issuer(self, origin: str) -> ASGIApp:
        """Both at one origin."""
        self.origin = self.issuer.origin = origin
        return Starlette(routes=[*self.routes(), *self.issuer.routes()])

    async def _about(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if self.about is None:
            return Response(status_code=404)
        return JSONResponse({"resource": self.url, "authorization_servers": [self.issuer.origin]} | self.about)
