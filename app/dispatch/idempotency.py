"""Idempotency keys: what a key was first used for, and which call holds it."""

import hashlib

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import CallRequest
from app.core.principals import Key
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch.live_calls import LiveCall, LiveCalls
from app.store import calls
from app.store.calls import Claim, Claimed

MAX_KEY_LENGTH = 256


class BadKey(ValueError):
    """The text is not an idempotency key; says why."""


class Conflict(Exception):
    """The key was used with another body."""


class Unreadable(Exception):
    """The call that holds the key cannot be read."""


def check_key(key: str) -> None:
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise BadKey(f"1 to {MAX_KEY_LENGTH} characters are needed.")


def claim_of(key: str, request: CallRequest, session: Session, part: str = "") -> Claim:
    """The claim of a key for this request; `part` distinguishes the calls of one request."""
    check_key(key)
    body = request.model_dump() | {"session": session.id}
    return Claim(_digest(f"{key}{part}".encode()), _digest(dumps(body, sort=True)))


def claim_of_model(dialect: str, id: str, part: int, request: CallRequest, session: Session) -> Claim:
    """The claim of a call with a provider's id: the same id and arguments again are the same call."""
    what = [dialect, session.id, id, part, request.tool, request.arguments, request.input]
    digest = _digest(b"run " + dumps(what, sort=True))
    return Claim(digest, digest)


def check_same(held: Claimed, claim: Claim, key: Key | None) -> None:
    """Raises `Conflict` when the claim is for something else than what is held."""
    if held.digest != claim.digest:
        raise Conflict("another call" if key and key.bounds.sessions else held.call)


async def holder_of(live_calls: LiveCalls, engine: AsyncEngine, live: LiveCall, claim: Claim) -> LiveCall:
    """The call that holds the key: this one, or the one that came first with the same body."""
    await live.wait_open()
    if live.record.claimed is None:
        return live
    check_same(live.record.claimed, claim, live.key)
    return await first_of(live_calls, engine, live.record.claimed, live.request, live.session)


async def first_of(
    live_calls: LiveCalls, engine: AsyncEngine, held: Claimed, request: CallRequest, session: Session
) -> LiveCall:
    """The call that came first with a key, live or from the store."""
    first = live_calls.get(held.call)
    if first is not None:
        return first
    stored = await calls.get(engine, held.call, None)
    if stored is None:
        raise Unreadable(held.call)
    ended = LiveCall(stored, request, session)
    ended.mark_done()
    return ended


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
