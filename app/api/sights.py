"""What a key sees of calls and sessions. What it does not see is not there."""

from app.api.access import Use
from app.api.problems import not_found
from app.core.calls import Call
from app.core.principals import Key, Scope
from app.core.sessions import Session
from app.store import calls


async def call_seen(use: Use, key: Key, id: str) -> Call:
    """The call, if this key may see it."""
    call = await calls.get(use.engine, id, key.sees)
    if call is None or not await use.sessions.shows_records(key, call.principal, call.session):
        raise not_found(f"call {id}")
    return call


async def session_seen(use: Use, key: Key, id: str, principal: str | None = None) -> Session:
    """The session, if this key may see it; only an admin's sees those of others."""
    if principal in (None, key.principal) or key.may(Scope.ADMIN):
        session = await use.sessions.seen(key, id, principal)
        if session is not None:
            return session
    raise not_found(f"session {id}")
