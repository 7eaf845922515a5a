"""Exits from the walls: where a process finds the proxy, and what stands for the secrets that go along there."""

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.core.errors import ToolUnavailable
from app.core.network_policy import BoundSecret, NetworkPolicy
from app.core.sandbox import Backend, EgressGrant, Isolation, Network, NetworkDecision
from app.core.sessions import Session
from app.sandbox.isolation import netns

LOOPBACK = "127.0.0.1"
BACKLOG = 128
USER = "toolcrib"
NOT_PROXIED = "localhost,127.0.0.1,::1"
Secrets = Callable[[str, str], str | None]
"""The value of a principal's secret by its name; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAccess:
    """What one process gets of it. `listener` is ours to serve from the start; without it, it comes from the inside."""

    env: dict[str, str] = field(default_factory=dict)
    proxy: int | None = None
    leave: EgressGrant | None = None
    listener: int | None = None


NO_EXIT = ProxyAccess()


def open_exit(
    isolation: Isolation,
    session: Session,
    policy: NetworkPolicy | None,
    secret: Secrets,
    tell: Callable[[NetworkDecision], None],
) -> ProxyAccess:
    """For walls that let listed hosts through. Who gets a listener closes it."""
    if isolation.network is not Network.ALLOWLIST:
        return NO_EXIT
    placed = tuple(_placed(session, secret))
    stand_ins = {one.name: one.placeholder for one in placed}
    policies = (policy, session.network_policy)
    if isolation.backend is Backend.BWRAP:
        leave = EgressGrant(owner=session.principal, policies=policies, report=tell, secrets=placed)
        return ProxyAccess(env=_proxied(f"http://{LOOPBACK}:{netns.PORT}") | stand_ins, proxy=0, leave=leave)
    # A port of this machine can be found by everybody on it, so whoever comes has to show that it is ours.
    token, (listener, port) = secrets.token_urlsafe(24), _listen()
    leave = EgressGrant(owner=session.principal, policies=policies, report=tell, secrets=placed, token=token)
    env = _proxied(f"http://{USER}:{token}@{LOOPBACK}:{port}") | stand_ins
    return ProxyAccess(env=env, proxy=port, leave=leave, listener=listener)


def _placed(session: Session, secret: Secrets) -> Iterator[BoundSecret]:
    """One placeholder for each name, which nobody can guess, and a secret for each domain it is bound to."""
    names = dict[str, str]()
    for one in session.network_policy.domain_secrets if session.network_policy else ():
        if secret(session.principal, one.name) is None:
            raise ToolUnavailable(f"The session's network policy names the secret {one.name}, which is not there.")
        placeholder = names.setdefault(one.name, f"tsec_{secrets.token_hex(16)}")
        yield BoundSecret(one.name, one.domain, placeholder)


def _proxied(url: str) -> dict[str, str]:
    """Programs look for a proxy under names in either case."""
    env = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": NOT_PROXIED}
    return env | {name.lower(): value for name, value in env.items()}


def _listen() -> tuple[int, int]:
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        one.listen(BACKLOG)
        os.set_blocking(one.fileno(), False)
        port: int = one.getsockname()[1]
        return one.detach(), port
