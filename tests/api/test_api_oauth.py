"""The page one comes back to after signing in elsewhere, and what leads there."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.mcp_servers import HttpServer
from app.mcp.client.oauth.registration import RedirectTarget
from tests.mcp.authorization_server import Issuer, Resource, served
from tests.mcp.oauth_managers import Signing
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
"""What a browser says when it is sent on by another site."""


@pytest.fixture
async def resource() -> AsyncIterator[Resource]:
    resource = Resource(Issuer())
    async with served(resource.with_issuer):
        yield resource


@pytest.fixture
async def signing(service: RunningService) -> AsyncIterator[Signing]:
    """The service's desk, with one in its place whose clock and whose reconnections a test sees."""
    signing = Signing(
        service.data_dir, home=RedirectTarget(f"{service.url}/oauth/callback", None), redactor=service.house.redactor
    )
    service.services.oauth = (await signing.open()).desk
    yield signing
    await signing.close()


@pytest.fixture
async def browser(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """Has no key."""
    async with httpx.AsyncClient(trust_env=False, verify=False, follow_redirects=True, headers=LINK) as browser:
        yield browser


def server_at(resource: Resource) -> HttpServer:
    return HttpServer(name="docs", kind="http", url=resource.url)


async def test_a_person_comes_back_to_a_page_that_says_so(
    signing: Signing, resource: Resource, browser: httpx.AsyncClient
) -> None:
    door = await signing.begin(server_at(resource))

    page = await browser.get(door.url)
    again = await browser.get(page.url)

    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h1>Signed in</h1><p>Toolcrib can use the MCP server docs now. You can close this window.</p>" in page.text
    assert resource.issuer.knows(await signing.token(server_at(resource))) is not None
    assert signing.reconnected == [("docs", None)]
    assert again.status_code == 400
    assert "This sign-in is unknown" in again.text


async def test_a_person_who_said_no_is_told_so(
    signing: Signing, resource: Resource, browser: httpx.AsyncClient
) -> None:
    resource.issuer.verdict = "access_denied"

    page = await browser.get((await signing.begin(server_at(resource))).url)

    assert page.status_code == 403
    assert f"{resource.origin} declined: access_denied. You can close this window" in page.text


async def test_an_issuer_that_breaks_at_the_last_moment_is_told_of(
    signing: Signing, resource: Resource, browser: httpx.AsyncClient
) -> None:
    resource.issuer.fails = 500

    page = await browser.get((await signing.begin(server_at(resource))).url)

    assert page.status_code == 502
    assert f"{resource.origin} answered 500 to the token request." in page.text


@pytest.mark.parametrize("name", ["state", "code", "iss", "error", "error_description"])
async def test_nothing_that_was_sent_is_shown(
    service: RunningService, signing: Signing, resource: Resource, browser: httpx.AsyncClient, name: str
) -> None:
    door = await signing.begin(server_at(resource))
    evil = "<script>alert(1)</script>{title}"
    known = {"state": httpx.URL(door.url).params["state"], "iss": resource.origin}

    pages = [
        await browser.get(f"{service.url}/oauth/callback", params={name: evil}),
        await browser.get(f"{service.url}/oauth/callback", params=known | {name: evil}),
    ]

    for page in pages:
        assert page.status_code in (400, 403, 502)
        assert "alert" not in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors 'none'")
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["x-content-type-options"] == "nosniff"


async def test_only_a_person_is_let_in_by_a_link(
    service: RunningService, signing: Signing, browser: httpx.AsyncClient
) -> None:
    url = f"{service.url}/oauth/callback?state=x"

    followed = await browser.get(url)
    fetched = await browser.get(url, headers={"Sec-Fetch-Mode": "no-cors"})
    posted = await browser.post(url)
    elsewhere = await browser.get(f"{service.url}/oauth/client.json")

    assert [one.status_code for one in (followed, fetched, posted, elsewhere)] == [400, 403, 403, 403]


async def test_what_is_too_long_is_not_even_looked_at(
    service: RunningService, signing: Signing, browser: httpx.AsyncClient
) -> None:
    answer = await browser.get(f"{service.url}/oauth/callback", params={"state": "x" * 5000})

    assert answer.status_code == 422


async def test_issuers_can_read_about_us_where_they_can_reach_us(service: RunningService, signing: Signing) -> None:
    async with service.client_of(None) as issuer:
        unknown = await issuer.get("/oauth/client.json")
        signing.home = RedirectTarget.at("https://crib.example.com", is_public=True)
        known = await issuer.get("/oauth/client.json")

    body: dict[str, Any] = known.json()
    assert unknown.status_code == 404
    assert body["client_id"] == "https://crib.example.com/oauth/client.json"
    assert body["redirect_uris"] == ["https://crib.example.com/oauth/callback"]


@pytest.mark.parametrize(
    ("settings", "callback", "document"),
    [
        ({}, "{url}/oauth/callback", None),
        ({"root_path": "/crib"}, "{url}/crib/oauth/callback", None),
        (
            {"public_url": "https://a.example/"},
            "https://a.example/oauth/callback",
            "https://a.example/oauth/client.json",
        ),
        (
            {"public_url": "https://a.example", "root_path": "/crib"},
            "https://a.example/crib/oauth/callback",
            "https://a.example/crib/oauth/client.json",
        ),
        (
            {"public_url": "https://a.example/crib", "root_path": "/crib"},
            "https://a.example/crib/oauth/callback",
            "https://a.example/crib/oauth/client.json",
        ),
        ({"public_url": "http://localhost:9"}, "http://localhost:9/oauth/callback", None),
    ],
    ids=["as it listens", "behind a prefix", "elsewhere", "elsewhere and behind it", "said twice", "no https"],
)
async def test_people_come_back_to_where_the_service_is_for_them(
    data_dir: Path, toys: Toys, settings: dict[str, Any], callback: str, document: str | None
) -> None:
    service = await RunningService(data_dir, toys, **settings).open()
    try:
        home = service.services.oauth._redirect()
        host = httpx.URL(settings.get("public_url", service.url)).host
        async with service.client_of(None) as person:
            page = await person.get("/oauth/callback?state=x", headers={"Host": host})
    finally:
        await service.close()

    assert home == RedirectTarget(callback.format(url=service.url), document)
    assert page.status_code == 400, "known by this name, but not this state"
