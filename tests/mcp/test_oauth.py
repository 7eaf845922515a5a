"""Signing in at servers that know people: real issuers on loopback, a real database, a clock that waits."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from app.core.errors import NetworkError
from app.core.mcp_servers import HttpServer, OAuth
from app.core.redaction import forms_of
from app.mcp.client.oauth import http
from app.mcp.client.oauth.authorization import UnknownState
from app.mcp.client.oauth.discovery import NoAuthorizationServer
from app.mcp.client.oauth.http import AuthFailed, OAuthHttp, Unreachable
from app.mcp.client.oauth.registration import RedirectTarget
from app.mcp.client.oauth.tokens import Declined
from app.net.resolver import Resolver
from tests.mcp.authorization_server import Issuer, Resource, served
from tests.mcp.oauth_managers import HANG, HOME, Signing, visit
from tests.support.services import until

PUBLIC = RedirectTarget("https://crib.example.com/oauth/callback", "https://crib.example.com/oauth/client.json")


@pytest.fixture
async def signing(data_dir: Path) -> AsyncIterator[Signing]:
    signing = await Signing(data_dir).open()
    yield signing
    await signing.close()


@pytest.fixture(params=["one origin", "two origins"])
async def resource(request: pytest.FixtureRequest) -> AsyncIterator[Resource]:
    """A server and its issuer, in one place and in two."""
    resource = Resource(Issuer())
    async with AsyncExitStack() as stack:
        if request.param == "one origin":
            await stack.enter_async_context(served(resource.with_issuer))
        else:
            await stack.enter_async_context(served(resource.issuer.app))
            await stack.enter_async_context(served(resource.app))
        yield resource


@pytest.fixture
async def plain() -> AsyncIterator[Resource]:
    """The same, once: for what has nothing to do with where they are."""
    resource = Resource(Issuer())
    async with served(resource.with_issuer):
        yield resource


def server_at(resource: Resource, **auth: Any) -> HttpServer:
    return HttpServer(name="docs", kind="http", url=resource.url, auth=OAuth(type="oauth", **auth) if auth else None)


async def test_a_person_signs_in_and_the_token_goes_along_from_then_on(signing: Signing, resource: Resource) -> None:
    server = server_at(resource)

    assert await signing.token(server) is None
    assert await signing.desk.handle_refusal(server, None, 401, resource.challenge) is False
    await signing.sign_in(server)

    granted = resource.issuer.knows(await signing.token(server))
    assert granted is not None
    assert granted.resource == resource.url
    assert signing.reconnected == [("docs", None)]
    asked = resource.issuer.of("/authorize")
    assert (asked["resource"], asked["code_challenge_method"]) == (resource.url, "S256")
    assert len(resource.asked) == 1


async def test_tokens_survive_a_restart_and_a_sign_in_under_way_does_not(signing: Signing, resource: Resource) -> None:
    server = server_at(resource)
    await signing.sign_in(server)
    token = await signing.token(server)
    brought = await visit(await signing.begin(server))

    await signing.close()
    await signing.open()

    assert await signing.token(server) == token
    with pytest.raises(UnknownState, match="is unknown"):
        await signing.complete(brought)
    assert await signing.token(server) == token


async def test_a_client_is_registered_once_for_all_sign_ins(signing: Signing, resource: Resource) -> None:
    server = server_at(resource)

    await signing.begin(server)
    await signing.close()
    await signing.open()
    await signing.sign_in(server)
    await signing.sign_in(server)

    assert resource.issuer.count("/register") == 1
    about: dict[str, Any] = resource.issuer.of("/register")
    assert about["redirect_uris"] == [HOME.callback]
    assert about["application_type"] == "native"


async def test_a_client_that_moved_is_registered_anew(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    signing.home = RedirectTarget("http://127.0.0.1:8701/oauth/callback", None)

    await signing.begin(server)

    assert plain.issuer.count("/register") == 2
    signing.clock.added = 4000
    assert plain.issuer.knows(await signing.token(server)) is not None, "renewed as who we were"


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_the_operator_registered_proves_it_with_its_secret(
    signing: Signing, plain: Resource, method: str
) -> None:
    plain.issuer.add_client("we/are:we", "the-secret-of-alice", method)
    plain.issuer.metadata["token_endpoint_auth_methods_supported"] = [method]
    server = server_at(plain, client_id="we/are:we", client_secret={"secret": "ID_SECRET"})

    await signing.sign_in(server, "alice")
    signing.clock.added = 4000

    assert plain.issuer.knows(await signing.token(server, "alice")) is not None
    assert plain.issuer.count("/register") == 0
    grant = signing.book.current("alice", "docs", plain.url)
    assert grant is not None
    assert grant.client["client_secret"] is None


async def test_a_client_without_a_secret_needs_none(signing: Signing, plain: Resource) -> None:
    plain.issuer.add_client("public", None, "none")

    await signing.sign_in(server_at(plain, client_id="public"))

    assert plain.issuer.knows(await signing.token(server_at(plain, client_id="public"))) is not None


async def test_where_the_issuer_can_read_about_us_nobody_registers(signing: Signing, plain: Resource) -> None:
    signing.home = PUBLIC
    plain.issuer.metadata["client_id_metadata_document_supported"] = True

    door = await signing.begin(server_at(plain))

    asked = dict(parse_qsl(urlsplit(door.url).query))
    assert asked["client_id"] == PUBLIC.document
    assert signing.desk.document() == {
        "client_id": PUBLIC.document,
        "client_name": "Toolcrib",
        "redirect_uris": [PUBLIC.callback],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }
    assert plain.issuer.count("/register") == 0
    signing.home = HOME
    assert signing.desk.document() is None


@pytest.mark.parametrize("rotates", [True, False])
async def test_a_token_is_renewed_before_it_runs_out(signing: Signing, resource: Resource, rotates: bool) -> None:
    resource.issuer.rotates = rotates
    server = server_at(resource)
    await signing.sign_in(server)
    first = await signing.token(server)

    signing.clock.added = 3530
    assert await signing.token(server) == first
    signing.clock.added = 3550
    second = await signing.token(server)
    assert await signing.token(server) == second != first
    await signing.close()
    await signing.open()
    assert await signing.token(server) == second
    signing.clock.added = 8000
    third = await signing.token(server)

    assert resource.issuer.knows(third) is not None
    assert third not in (first, second)
    assert resource.issuer.count("/token") == 3


async def test_of_many_who_need_it_one_renews(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    signing.clock.added = 4000

    tokens = await asyncio.gather(*(signing.token(server) for _ in range(20)))

    assert len(set(tokens)) == 1
    assert plain.issuer.count("/token") == 2


async def test_a_renewal_is_not_lost_with_who_asked_for_it(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    signing.clock.added = 4000

    asking = asyncio.create_task(signing.token(server))
    while not plain.issuer.count("/token") > 1 and not asking.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await signing.close()
    await signing.open()

    assert asking.cancelled()
    assert plain.issuer.knows(await signing.token(server)) is not None
    assert plain.issuer.count("/token") == 2


async def test_a_token_without_an_end_is_used_until_it_is_refused(signing: Signing, plain: Resource) -> None:
    plain.issuer.lifetime = None
    server = server_at(plain)
    await signing.sign_in(server)
    first = await signing.token(server)
    signing.clock.added = 10_000

    assert await signing.token(server) == first
    assert await signing.desk.handle_refusal(server, None, 401, plain.challenge) is True
    assert await signing.token(server) != first
    assert plain.issuer.count("/token") == 2


async def test_what_was_revoked_takes_a_person(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    plain.issuer.access.clear()
    plain.issuer.refresh.clear()
    signing.clock.added = 60

    assert await signing.desk.handle_refusal(server, None, 401, plain.challenge) is False
    assert await signing.token(server) is None
    await signing.sign_in(server)
    assert plain.issuer.knows(await signing.token(server)) is not None
    assert plain.issuer.count("/register") == 1


async def test_who_is_not_known_any_more_registers_anew(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    plain.issuer.clients.clear()
    signing.clock.added = 4000

    assert await signing.token(server) is None
    await signing.sign_in(server)

    assert plain.issuer.knows(await signing.token(server)) is not None
    assert plain.issuer.count("/register") == 2


async def test_an_issuer_that_is_down_costs_no_tokens(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    first = await signing.token(server)
    plain.issuer.fails = 503

    signing.clock.added = 3550
    assert await signing.token(server) == first, "it is still good"
    signing.clock.added = 4000
    with pytest.raises(NetworkError, match=f"There is no token for docs: {plain.origin} answered 503"):
        await signing.token(server)
    plain.issuer.fails = None

    assert plain.issuer.knows(await signing.token(server)) is not None


async def test_a_refusal_right_after_a_renewal_was_meant_for_the_token_before(
    signing: Signing, plain: Resource
) -> None:
    server = server_at(plain)
    await signing.sign_in(server)

    assert await signing.desk.handle_refusal(server, None, 401, plain.challenge) is True
    assert await signing.desk.handle_refusal(server, None, 401, plain.challenge) is True
    assert plain.issuer.count("/token") == 2
    signing.clock.added = 2
    assert await signing.desk.handle_refusal(server, None, 401, plain.challenge) is True
    assert plain.issuer.count("/token") == 3


async def test_more_scope_takes_a_person_who_gives_both(signing: Signing, plain: Resource) -> None:
    server = server_at(plain, scope="docs:read")
    await signing.sign_in(server)
    challenge = f'{plain.challenge.replace("invalid_token", "insufficient_scope")}, scope="docs:write"'

    assert await signing.desk.handle_refusal(server, None, 403, challenge) is False
    await signing.sign_in(server)

    granted = plain.issuer.knows(await signing.token(server))
    assert granted is not None
    assert granted.scope == "docs:read docs:write"


async def test_another_403_has_nothing_to_do_with_signing_in(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)

    assert await signing.desk.handle_refusal(server, None, 403, None) is False
    assert plain.issuer.knows(await signing.token(server)) is not None


async def test_scopes_are_those_the_server_asks_for(signing: Signing, plain: Resource) -> None:
    plain.about = {"scopes_supported": ["all", "of", "them"]}
    plain.issuer.metadata["scopes_supported"] = ["all", "offline_access"]
    server = server_at(plain)

    await signing.sign_in(server)
    first = plain.issuer.of("/authorize")
    await signing.desk.handle_refusal(server, None, 401, f'{plain.challenge}, scope="some"')
    await signing.begin(server)
    second = dict(parse_qsl(urlsplit((await signing.begin(server)).url).query))

    assert (first["scope"], first["prompt"]) == ("all of them offline_access", "consent")
    assert second["scope"] == "some offline_access"


async def test_a_program_signs_in_alone(signing: Signing, resource: Resource) -> None:
    resource.issuer.add_client("robot", "the-secret-of-everybody")
    secret = {"secret": "ID_SECRET"}
    server = server_at(resource, grant="client_credentials", client_id="robot", client_secret=secret, scope="docs:read")

    first = await signing.token(server)
    signing.clock.added = 3700
    second = await signing.token(server)

    granted = resource.issuer.knows(second)
    assert granted is not None
    assert (granted.client, granted.scope, granted.resource) == ("robot", "docs:read", resource.url)
    assert first != second
    assert resource.issuer.count("/token") == 2
    assert await signing.desk.start(server, None, "admin") is None
    assert signing.reconnected == [("docs", None)]


async def test_a_program_gets_more_scope_by_itself(signing: Signing, plain: Resource) -> None:
    plain.issuer.add_client("robot", "the-secret-of-everybody")
    secret = {"secret": "ID_SECRET"}
    server = server_at(plain, grant="client_credentials", client_id="robot", client_secret=secret, scope="docs:read")
    await signing.token(server)
    challenge = 'Bearer error="insufficient_scope", scope="docs:write"'

    assert await signing.desk.handle_refusal(server, None, 403, challenge) is True

    granted = plain.issuer.knows(await signing.token(server))
    assert granted is not None
    assert granted.scope == "docs:read docs:write"


async def test_a_program_without_its_secret_is_told_so(signing: Signing, plain: Resource) -> None:
    secret = {"secret": "MISSING"}
    server = server_at(plain, grant="client_credentials", client_id="robot", client_secret=secret)
    bare = server_at(plain, grant="client_credentials", client_id="robot")

    assert await signing.token(server) is None
    with pytest.raises(AuthFailed, match="The secret MISSING is not set"):
        await signing.desk.start(server, None, "admin")
    with pytest.raises(AuthFailed, match="needs a `client_id` and a `client_secret`"):
        await signing.desk.start(bare, None, "admin")


async def test_tokens_are_their_owners_and_their_servers_own(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server, "alice")

    assert await signing.token(server, "alice") is not None
    assert await signing.token(server, "bob") is None
    assert await signing.token(server) is None
    assert await signing.token(server.model_copy(update={"name": "other"}), "alice") is None
    assert await signing.token(server.model_copy(update={"url": f"{plain.origin}/elsewhere"}), "alice") is None


async def test_a_server_with_a_key_of_its_own_gets_no_token(signing: Signing, plain: Resource) -> None:
    await signing.sign_in(server_at(plain))
    keyed = server_at(plain).model_copy(update={"headers": {"authorization": "Bearer mine"}})

    assert await signing.token(keyed) is None
    assert await signing.desk.handle_refusal(keyed, None, 401, plain.challenge) is False
    with pytest.raises(NoAuthorizationServer, match="docs does not use OAuth"):
        await signing.desk.start(keyed, None, "admin")


async def test_what_is_forgotten_is_gone(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    brought = await visit(await signing.begin(server))

    await signing.desk.forget("docs", None)
    assert await signing.token(server) is None
    assert signing.reconnected == [("docs", None)] * 2
    await signing.desk.forget("docs", None)
    assert len(signing.reconnected) == 2
    with pytest.raises(UnknownState):
        await signing.complete(brought)
    await signing.close()
    await signing.open()
    assert await signing.token(server) is None


@pytest.mark.parametrize("what", ["a renewal", "a sign-in"])
async def test_what_is_just_being_got_is_forgotten_too(signing: Signing, plain: Resource, what: str) -> None:
    server = server_at(plain)
    await signing.sign_in(server)
    if what == "a renewal":
        signing.clock.added = 4000
        getting: asyncio.Task[Any] = asyncio.create_task(signing.token(server))
    else:
        getting = asyncio.create_task(signing.complete(await visit(await signing.begin(server))))
    await until(lambda: plain.issuer.count("/token") > 1)
    assert not getting.done()

    await signing.desk.forget("docs", None)
    await asyncio.wait([getting])

    assert await signing.token(server) is None
    await signing.close()
    await signing.open()
    assert await signing.token(server) is None


async def test_a_state_is_good_once_and_for_ten_minutes(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    door = await signing.begin(server)
    used, late = await visit(door), await visit(await signing.begin(server))
    await signing.complete(used)

    assert 595 < (door.expires_at - signing.clock.now()) / 1_000_000 <= 600
    for brought in (used, used | {"state": "made-up"}, used | {"state": ""}):
        with pytest.raises(UnknownState):
            await signing.complete(brought)
    signing.clock.added = 600
    with pytest.raises(UnknownState):
        await signing.complete(late)
    assert plain.issuer.count("/token") == 1


async def test_several_sign_ins_are_under_way_at_once(signing: Signing, plain: Resource) -> None:
    servers = [server_at(plain).model_copy(update={"name": f"docs{number}"}) for number in range(5)]

    brought = [await visit(await signing.begin(server)) for server in servers]
    await asyncio.gather(*(signing.complete(one) for one in reversed(brought)))

    tokens = [await signing.token(server) for server in servers]
    assert len(set(tokens)) == 5
    assert all(plain.issuer.knows(token) for token in tokens)


async def test_only_so_many_sign_ins_of_a_server_are_remembered(signing: Signing, plain: Resource) -> None:
    server = server_at(plain)
    first = await visit(await signing.begin(server))

    for _ in range(16):
        last = await signing.begin(server)

    with pytest.raises(UnknownState):
        await signing.complete(first)
    await signing.complete(await visit(last))


@pytest.mark.parametrize("iss", ["https://evil.example", None, ""], ids=["another", "none", "empty"])
async def test_an_answer_of_another_issuer_is_not_taken(signing: Signing, plain: Resource, iss: str | None) -> None:
    brought = await visit(await signing.begin(server_at(plain)))

    with pytest.raises(AuthFailed, match=f"The authorization response is not from {plain.origin}"):
        await signing.complete(brought, iss=iss)
    assert plain.issuer.count("/token") == 0


async def test_an_issuer_that_does_not_say_who_it_is_need_not(signing: Signing, plain: Resource) -> None:
    plain.issuer.sends_iss = False

    await signing.sign_in(server_at(plain))

    assert await signing.token(server_at(plain)) is not None


async def test_a_person_may_say_no(signing: Signing, plain: Resource) -> None:
    plain.issuer.verdict = "access_denied"
    brought = await visit(await signing.begin(server_at(plain)))

    with pytest.raises(Declined, match=f"{plain.origin} declined: access_denied"):
        await signing.complete(brought)
    with pytest.raises(UnknownState):
        await signing.complete(brought)


async def test_what_the_issuer_says_is_not_repeated_unless_it_is_a_word(signing: Signing, plain: Resource) -> None:
    brought = await visit(await signing.begin(server_at(plain)))

    with pytest.raises(Declined, match="declined: no valid error code"):
        await signing.complete(brought, error="<script>alert(1)</script>")


async def test_a_code_that_was_not_meant_for_us_gives_nothing(signing: Signing, plain: Resource) -> None:
    """The issuer compares the proof of who began with the proof of who comes for the token."""
    server = server_at(plain)
    ours, theirs = await visit(await signing.begin(server)), await visit(await signing.begin(server))

    with pytest.raises(Declined, match="invalid_grant"):
        await signing.complete(ours, code=theirs["code"])
    assert await signing.token(server) is None


async def test_without_pkce_nobody_is_sent_anywhere(signing: Signing, plain: Resource) -> None:
    for methods in (None, ["plain"]):
        plain.issuer.metadata["code_challenge_methods_supported"] = methods
        with pytest.raises(AuthFailed, match="does not support PKCE"):
            await signing.begin(server_at(plain))


async def test_nobody_is_sent_back_over_an_open_wire(signing: Signing, plain: Resource) -> None:
    signing.home = RedirectTarget("http://192.168.1.5:8700/oauth/callback", None)

    with pytest.raises(AuthFailed, match="set public_url"):
        await signing.begin(server_at(plain))


async def test_a_server_that_publishes_nothing_has_no_sign_in(signing: Signing) -> None:
    async with served(lambda origin: Starlette()) as origin:
        server = HttpServer(name="docs", kind="http", url=f"{origin}/mcp")
        with pytest.raises(NoAuthorizationServer, match="does not publish an authorization server"):
            await signing.begin(server)


async def test_an_issuer_may_be_the_servers_own_origin_unsaid(signing: Signing, plain: Resource) -> None:
    plain.about = None

    await signing.sign_in(server_at(plain))

    assert plain.issuer.knows(await signing.token(server_at(plain))) is not None


async def test_an_issuer_with_openid_metadata_is_found(signing: Signing, plain: Resource) -> None:
    issuer = Issuer()

    def app(origin: str) -> Starlette:
        issuer.origin = f"{origin}/realms/one"
        about = Route("/realms/one/.well-known/openid-configuration", issuer._about)
        rest = [
            Route(f"/realms/one{route.path}", route.endpoint, methods=route.methods) for route in issuer.routes()[1:]
        ]
        return Starlette(routes=[about, *rest])

    async with served(app):
        plain.about = {"authorization_servers": [issuer.origin]}
        await signing.sign_in(server_at(plain))
        assert issuer.knows(await signing.token(server_at(plain))) is not None


async def test_only_the_issuer_that_was_named_is_taken(signing: Signing, plain: Resource) -> None:
    with pytest.raises(AuthFailed, match=r"does not name https://good.example as its issuer"):
        await signing.begin(server_at(plain, issuer="https://good.example"))

    plain.about = {"authorization_servers": ["https://evil.example", plain.origin]}
    await signing.sign_in(server_at(plain, issuer=plain.origin))
    assert await signing.token(server_at(plain, issuer=plain.origin)) is not None


async def test_an_issuer_that_publishes_anothers_metadata_is_not_taken(signing: Signing, plain: Resource) -> None:
    plain.issuer.metadata["issuer"] = "https://good.example"

    with pytest.raises(AuthFailed, match="publishes the metadata of another issuer"):
        await signing.begin(server_at(plain))


async def test_metadata_of_another_server_is_not_taken(signing: Signing, plain: Resource) -> None:
    plain.about = {"resource": "https://bank.example/mcp"}

    with pytest.raises(AuthFailed, match="is about another server"):
        await signing.begin(server_at(plain))


@pytest.mark.parametrize("endpoint", ["token_endpoint", "registration_endpoint", "authorization_endpoint"])
async def test_nothing_secret_is_sent_over_an_open_wire(signing: Signing, plain: Resource, endpoint: str) -> None:
    plain.issuer.metadata[endpoint] = "http://issuer.example/x"
    server = server_at(plain)

    with pytest.raises(AuthFailed, match=r"http://issuer.example is not https"):
        await signing.complete(await visit(await signing.begin(server)))


async def test_a_server_without_https_elsewhere_has_no_sign_in(signing: Signing) -> None:
    with pytest.raises(AuthFailed, match=r"http://mcp.example is not https"):
        await signing.begin(HttpServer(name="docs", kind="http", url="http://mcp.example/mcp"))


async def test_a_servers_owner_cannot_lead_us_inside(data_dir: Path, plain: Resource) -> None:
    signing = await Signing(data_dir, opened=()).open()
    try:
        with pytest.raises(Unreachable, match="a private address"):
            await signing.begin(server_at(plain), "alice")
        await signing.sign_in(server_at(plain))  # everybody's, which the operator put there
    finally:
        await signing.close()
    assert plain.issuer.count("/token") == 1


async def test_a_public_server_cannot_lead_us_inside_even_if_it_is_everybodys(signing: Signing) -> None:
    """The rule by itself: what is public must stay among what is public."""
    inside = OAuthHttp(Resolver(()).find)
    public = HttpServer(name="docs", kind="http", url="https://93.184.215.14/mcp")
    where = http.require_https("http://127.0.0.1:1/x")

    with pytest.raises(Unreachable, match="a private address"):
        await inside._addresses(where, public, None)
    at_home = HttpServer(name="docs", kind="http", url="http://127.0.0.1:2/mcp")
    assert await inside._addresses(where, at_home, None) == ["127.0.0.1"]
    with pytest.raises(Unreachable, match="a private address"):
        await inside._addresses(where, at_home, "alice")


@asynccontextmanager
async def published(respond: Callable[..., Any]) -> AsyncIterator[HttpServer]:
    """A server that publishes what it should not."""
    async with served(lambda origin: Starlette(routes=[Route("/{rest:path}", respond)])) as origin:
        yield HttpServer(name="docs", kind="http", url=f"{origin}/mcp")


async def test_an_endless_answer_is_cut_off(signing: Signing) -> None:
    async def endless(request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            while not await request.is_disconnected():
                yield b'{"resource": "' + b"x" * 65_536

        return StreamingResponse(body())

    async with published(endless) as server:
        with pytest.raises(AuthFailed, match="is larger than 256 KiB"):
            async with asyncio.timeout(HANG):
                await signing.begin(server)


async def test_an_answer_that_does_not_come_is_not_waited_for(
    signing: Signing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.2)

    async def silent(request: Request) -> Response:
        while not await request.is_disconnected():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return Response()

    async with published(silent) as server:
        with pytest.raises(Unreachable, match=r"did not answer within 0.2 s|cannot be reached: ReadTimeout"):
            async with asyncio.timeout(HANG):
                await signing.begin(server)


async def test_a_redirect_is_followed_at_home_only(signing: Signing, plain: Resource) -> None:
    async def elsewhere(request: Request) -> Response:
        return RedirectResponse(f"{plain.origin}{request.url.path}")

    async def circles(request: Request) -> Response:
        return RedirectResponse(f"{request.url.path}x")

    async with published(elsewhere) as server:
        with pytest.raises(NoAuthorizationServer):
            await signing.begin(server)
    assert plain.asked == []
    async with published(circles) as server:
        with pytest.raises(Unreachable, match="redirects in a loop"):
            await signing.begin(server)


@pytest.mark.parametrize(
    "answer",
    [
        {"access_token": "a b\r\nX: y", "token_type": "bearer"},
        {"access_token": "quite-a-token-really", "token_type": "mac"},
        {"token_type": "bearer"},
        ["no", "object"],
    ],
    ids=["unwritable", "of another kind", "none", "not an object"],
)
async def test_what_is_no_bearer_token_is_not_kept(signing: Signing, plain: Resource, answer: Any) -> None:
    async def token(request: Request) -> Response:
        return JSONResponse(answer)

    async with served(lambda origin: Starlette(routes=[Route("/token", token, methods=["POST"])])) as origin:
        plain.issuer.metadata["token_endpoint"] = f"{origin}/token"
        with pytest.raises(AuthFailed, match=r"no bearer token|a header cannot carry") as failed:
            await signing.sign_in(server_at(plain))
    assert "token-really" not in str(failed.value)
    assert await signing.token(server_at(plain)) is None


async def test_no_token_is_found_in_any_file_or_word(
    signing: Signing, plain: Resource, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("", "app", "mcp", "httpx2"):  # a service in this process may have quieted some
        caplog.set_level(logging.DEBUG, logger=name)
    server = server_at(plain)
    await signing.sign_in(server)
    signing.clock.added = 4000
    await signing.token(server)
    plain.issuer.refresh.clear()
    signing.clock.added = 8000
    await signing.token(server)
    await signing.sign_in(server)
    grant = signing.book.current(None, "docs", plain.url)
    held = grant.secrets if grant else frozenset()
    await signing.close()

    files = {path: path.read_bytes() for path in signing.data_dir.rglob("*") if path.is_file()}
    found = [
        (path.name, form)
        for secret in plain.issuer.everything
        for form in forms_of(secret)
        for path, data in files.items()
        if form.encode() in data
    ]
    await signing.open()

    assert len(plain.issuer.everything) > 8
    assert found == []
    said = [record.getMessage() for record in caplog.records if record.name.startswith(("app", "mcp", "httpx2"))]
    assert len(said) > 5
    assert not [secret for secret in plain.issuer.everything if secret in "\n".join(said)]
    assert len(held) == 3
    assert not [secret for secret in held if secret in repr(grant)]
    assert all(signing.redactor.text(f"x {secret} y") == "x [redacted] y" for secret in held)


async def test_rows_that_cannot_be_opened_are_no_reason_not_to_start(signing: Signing, plain: Resource) -> None:
    await signing.sign_in(server_at(plain))
    await signing.close()
    (signing.data_dir / "secrets.key").unlink()

    await signing.open()

    assert await signing.token(server_at(plain)) is None
    await signing.sign_in(server_at(plain))
    assert await signing.token(server_at(plain)) is not None


async def test_a_row_is_sealed_as_what_it_is(signing: Signing, plain: Resource) -> None:
    await signing.sign_in(server_at(plain), "alice")
    await signing.close()
    with closing(sqlite3.connect(signing.data_dir / "toolcrib.db")) as database, database:
        database.execute("UPDATE mcp_tokens SET principal = 'bob'")
    await signing.open()

    assert await signing.token(server_at(plain), "bob") is None
    assert await signing.token(server_at(plain), "alice") is None
