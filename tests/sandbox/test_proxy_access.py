"""Exits: who gets a proxy, and that no secret goes through the walls."""

import os
import re
import socket
from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import ToolUnavailable
from app.core.network_policy import DomainSecret, NetworkPolicy
from app.core.sandbox import Backend, Isolation, Network
from app.core.sessions import Profile, Session
from app.sandbox.isolation.planner import NO_PROXY_ACCESS, ProxyAccess, allow_proxy

LISTED = Isolation(Backend.BWRAP, Profile.WORKSPACE_WRITE, Network.ALLOWLIST)
POLICY = NetworkPolicy(
    "allowlist",
    ("api.test", "other.test"),
    (DomainSecret("api.test", "TOKEN"), DomainSecret("other.test", "TOKEN"), DomainSecret("api.test", "PASSWORD")),
)
SESSION = Session("ann", "one", network_policy=POLICY)
OPERATORS = NetworkPolicy("allowlist", ("*.test",))
VALUES = {("ann", "TOKEN"): "real-token", ("ann", "PASSWORD"): "real-password"}


def opened(walls: Isolation, session: Session = SESSION) -> ProxyAccess:
    return allow_proxy(walls, session, OPERATORS, lambda owner, name: VALUES.get((owner, name)), lambda decision: None)


@pytest.mark.parametrize("network", [Network.NONE, Network.FULL])
def test_only_walls_that_let_listed_hosts_through_have_one(network: Network) -> None:
    assert opened(replace(LISTED, network=network)) is NO_PROXY_ACCESS


def test_with_a_network_of_its_own_the_proxy_listens_inside() -> None:
    way = opened(LISTED)

    assert (way.proxy, way.listener) == (0, None)
    assert way.grant is not None
    assert way.grant.token is None
    assert {way.env[name] for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")} == {
        "http://127.0.0.1:3128"
    }
    assert way.env["NO_PROXY"] == way.env["no_proxy"] == "localhost,127.0.0.1,::1"


def test_without_one_it_listens_on_this_machine_and_wants_to_see_a_token() -> None:
    way = opened(replace(LISTED, backend=Backend.LANDLOCK, is_degraded=True))

    assert way.listener is not None
    assert way.grant is not None
    try:
        with socket.create_connection(("127.0.0.1", way.proxy or 0), 5):
            pass
        assert way.env["HTTPS_PROXY"] == f"http://toolcrib:{way.grant.token}@127.0.0.1:{way.proxy}"
        assert len(way.grant.token or "") >= 32
    finally:
        os.close(way.listener)


def test_both_policies_count_and_the_session_owns_what_goes_out() -> None:
    leave = opened(LISTED).grant

    assert leave is not None
    assert (leave.owner, list(leave.policies)) == ("ann", [OPERATORS, POLICY])


def test_a_process_sees_what_stands_for_a_secret_and_never_the_secret() -> None:
    way, again = opened(LISTED), opened(LISTED)

    assert way.grant is not None
    placed = {(one.name, one.domain): one.placeholder for one in way.grant.secrets}
    assert set(placed) == {("TOKEN", "api.test"), ("TOKEN", "other.test"), ("PASSWORD", "api.test")}
    assert placed["TOKEN", "api.test"] == placed["TOKEN", "other.test"] == way.env["TOKEN"]
    assert placed["PASSWORD", "api.test"] == way.env["PASSWORD"] != way.env["TOKEN"]
    assert all(re.fullmatch(r"tsec_[0-9a-f]{32}", value) for value in placed.values())
    assert again.env["TOKEN"] != way.env["TOKEN"]
    assert not any(value in shown(way) for value in VALUES.values())


def shown(way: Any) -> str:
    return repr((way.env, way.grant))


def test_a_secret_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(ToolUnavailable, match="names the secret TOKEN, which does not exist"):
        opened(LISTED, replace(SESSION, principal="bob"))
