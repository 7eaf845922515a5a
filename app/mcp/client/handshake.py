"""The handshake: `server/discover` of 2026-07-28 first, and `initialize` where the server does not support that."""

from typing import Any

from app import __version__
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import MODERN, CannotConnect, ConnectionLost, JsonRpcError, ServerInfo
from app.mcp.client.jsonrpc import JsonRpcPeer

OLDER_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions with `initialize`, newest first."""
UNSUPPORTED_VERSION = -32022
MAX_MESSAGE = 500

CLIENT_INFO = {"name": "toolcrib", "title": "Toolcrib", "version": __version__}
CAPABILITIES: Raw = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}

PREFIX = "io.modelcontextprotocol/"
CLIENT_CAPABILITIES = f"{PREFIX}clientCapabilities"
ENVELOPE: Raw = {
    f"{PREFIX}protocolVersion": MODERN,
    f"{PREFIX}clientInfo": CLIENT_INFO,
    CLIENT_CAPABILITIES: CAPABILITIES,
}
"""What 2026-07-28 requires in the `_meta` of every request."""
SERVER_INFO = f"{PREFIX}serverInfo"
LOG_LEVEL = f"{PREFIX}logLevel"


class VersionUnsupported(CannotConnect):
    """The server refused `initialize`; `status` is the HTTP status, if there is one."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class NoReply(Exception):
    """The server did not answer `server/discover`, or exited because of it."""


async def discover(peer: JsonRpcPeer, seconds: float) -> ServerInfo | None:
    """`server/discover`; None where the server does not support 2026-07-28.

    Raises `NoReply`, `CannotConnect`, `ConnectionLost`.
    """
    peer.transport.set_protocol_version(MODERN)
    try:
        result = await _request_discover(peer, seconds)
    except TimeoutError:
        raise NoReply from None
    except JsonRpcError as error:
        supported = _supported_versions(error)
        if supported and not {*supported} & {MODERN, *OLDER_VERSIONS}:
            raise _unknown_version(", ".join(supported)) from None
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
    return _server_info(MODERN, result, info or result.get("serverInfo"))


async def _request_discover(peer: JsonRpcPeer, seconds: float) -> Raw:
    """A server that refuses our version and names that same version as supported is asked once more."""
    params = {"_meta": ENVELOPE}
    try:
        return await peer.request("server/discover", params, timeout=seconds)
    except JsonRpcError as error:
        if MODERN not in _supported_versions(error):
            raise
    return await peer.request("server/discover", params, timeout=seconds)


async def initialize(peer: JsonRpcPeer) -> ServerInfo | None:
    """`initialize`; None where the server answers that it only supports 2026-07-28."""
    peer.transport.set_protocol_version(None)
    params = {"protocolVersion": OLDER_VERSIONS[0], "capabilities": CAPABILITIES, "clientInfo": CLIENT_INFO}
    try:
        result = await peer.request("initialize", params)
    except JsonRpcError as error:
        if MODERN in _supported_versions(error):
            return None
        status = error.data.get("status") if isinstance(error.data, dict) else None
        raise VersionUnsupported(f"initialize failed: {error.message[:MAX_MESSAGE]}", status) from None
    version = result.get("protocolVersion")
    if version not in OLDER_VERSIONS:
        raise _unknown_version(str(version))
    peer.transport.set_protocol_version(version)
    await peer.notify("notifications/initialized")
    return _server_info(version, result, result.get("serverInfo"))


def _server_info(version: str, result: Raw, info: Any) -> ServerInfo:
    capabilities, instructions = result.get("capabilities"), result.get("instructions")
    return ServerInfo(
        version=version,
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        info=info if isinstance(info, dict) else {},
        instructions=instructions if isinstance(instructions, str) else None,
    )


def _supported_versions(error: JsonRpcError) -> list[str]:
    """The versions that a server names when it refuses ours."""
    is_refusal = error.code == UNSUPPORTED_VERSION and isinstance(error.data, dict)
    versions = error.data.get("supported") if is_refusal else None
    return [version for version in versions if isinstance(version, str)] if isinstance(versions, list) else []


def _unknown_version(versions: str) -> CannotConnect:
    return CannotConnect(
        f"The server supports only version {versions[:80]} of the protocol, which Toolcrib does not.", is_final=True
    )
