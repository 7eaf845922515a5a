"""Hellos: how two sides find out what they can say to each other. There are two eras, and a server is of one or both.

The newer one is asked for first. Whatever is no clear yes to it (an error, silence, nonsense) means the older one,
whose first word is `initialize`.
"""

from functools import partial
from typing import Any

from app import __version__
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import MODERN, CannotConnect, ConnectionLost, JsonRpcError, ServerInfo
from app.mcp.client.jsonrpc import JsonRpcPeer

OLDER = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions with a handshake, newest first."""
UNSUPPORTED_VERSION = -32022
MOST_WORDS = 500

CLIENT_INFO = {"name": "toolcrib", "title": "Toolcrib", "version": __version__}
CAPABILITIES: Raw = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}

PREFIX = "io.modelcontextprotocol/"
CLIENT_CAPABILITIES = f"{PREFIX}clientCapabilities"
ENVELOPE: Raw = {
    f"{PREFIX}protocolVersion": MODERN,
    f"{PREFIX}clientInfo": CLIENT_INFO,
    CLIENT_CAPABILITIES: CAPABILITIES,
}
"""What the newer era wants to stand in the `_meta` of every request."""
SERVER_INFO = f"{PREFIX}serverInfo"
LOG_LEVEL = f"{PREFIX}logLevel"


class VersionUnsupported(CannotConnect):
    """The server said no to the first word; `status` is that of HTTP, where there is one."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class NoReply(Exception):
    """The server did not answer the first question at all, or did not survive it."""


async def discover(peer: JsonRpcPeer, seconds: float) -> ServerInfo | None:
    """`discover` of 2026-07-28; None where the server does not know it.

    Raises `NoReply`, `CannotConnect`, `ConnectionLost`.
    """
    peer.wire.speak(MODERN)
    try:
        result = await _ask(peer, seconds)
    except TimeoutError:
        raise NoReply from None
    except JsonRpcError as no:
        named = _supported(no)
        if named and not {*named} & {MODERN, *OLDER}:
            raise _foreign(", ".join(named)) from None
        return None
    except ConnectionLost:
        if peer.lost.done():
            raise
        return None
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or MODERN not in versions:
        return None
    meta = result.get("_meta")
    info = meta.get(SERVER_INFO) if isinstance(meta, dict) else None
    return _hello(MODERN, result, info or result.get("serverInfo"))


async def _ask(peer: JsonRpcPeer, seconds: float) -> Raw:
    """A server that does not take our version, and names just that one among those it does, is asked once more."""
    request = partial(peer.request, "server/discover", {"_meta": ENVELOPE}, seconds=seconds)
    try:
        return await request()
    except JsonRpcError as no:
        if MODERN not in _supported(no):
            raise
    return await request()


async def initialize(peer: JsonRpcPeer) -> ServerInfo | None:
    """Hello in the older era; None where the server says that it is of the newer one after all."""
    peer.wire.speak(None)
    params = {"protocolVersion": OLDER[0], "capabilities": CAPABILITIES, "clientInfo": CLIENT_INFO}
    try:
        result = await peer.request("initialize", params)
    except JsonRpcError as no:
        if MODERN in _supported(no):
            return None
        status = no.data.get("status") if isinstance(no.data, dict) else None
        raise VersionUnsupported(f"The server would not say hello: {no.message[:MOST_WORDS]}", status) from None
    version = result.get("protocolVersion")
    if version not in OLDER:
        raise _foreign(str(version))
    peer.wire.speak(version)
    await peer.notify("notifications/initialized")
    return _hello(version, result, result.get("serverInfo"))


def _hello(version: str, result: Raw, info: Any) -> ServerInfo:
    capabilities, words = result.get("capabilities"), result.get("instructions")
    return ServerInfo(
        version=version,
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        info=info if isinstance(info, dict) else {},
        instructions=words if isinstance(words, str) else None,
    )


def _supported(no: JsonRpcError) -> list[str]:
    """The versions a server names when it does not know ours."""
    named = no.data.get("supported") if no.code == UNSUPPORTED_VERSION and isinstance(no.data, dict) else None
    return [version for version in named if isinstance(version, str)] if isinstance(named, list) else []


def _foreign(versions: str) -> CannotConnect:
    return CannotConnect(
        f"The server speaks version {versions[:80]} of the protocol, and no other; we do not.", is_final=True
    )
