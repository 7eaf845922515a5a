"""Once more: what may be sent again waits for its server to be back, for a while."""

import asyncio

from app.core.errors import ToolUnavailable
from app.core.mcp_servers import ServerState
from app.core.sessions import Session
from app.mcp.ports import Link, Upstream

BACK_AGAIN = 10.0
"""Seconds that a server has to be back."""
LOOK_AGAIN = 0.1


async def next_link(upstream: Upstream, session: Session) -> Link | None:
    """A link that is not lost; None when there is none in time. Raises `ToolUnavailable` where no waiting helps."""
    loop = asyncio.get_running_loop()
    until = loop.time() + BACK_AGAIN
    while True:
        link = await _link(upstream, session)
        if link is not None and not link.lost.done():
            return link
        if loop.time() >= until:
            return None
        await asyncio.sleep(LOOK_AGAIN)


async def _link(upstream: Upstream, session: Session) -> Link | None:
    try:
        return await upstream.link(session)
    except ToolUnavailable as error:
        if (error.details or {}).get("state") == ServerState.NEEDS_AUTH:
            raise
        return None
