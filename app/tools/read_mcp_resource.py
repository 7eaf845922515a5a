"""read_mcp_resource: one resource of an MCP server."""

import base64
import binascii
from typing import Any

from pydantic import BaseModel, Field

from app.core.ports import PathScope
from app.core.results import MAX_ATTACHED_BYTES, Attachment, Result, attach
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, typed
from app.core.util.json_codec import Raw, dumps

ANY_BYTES = "application/octet-stream"


class Args(BaseModel, extra="forbid"):
    server: str = Field(min_length=1, description="The MCP server, as list_mcp_resources names it.")
    uri: str = Field(min_length=1, description="The resource's address, as list_mcp_resources has it.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("mcp", f"{args.server}/resource:{args.uri}")]


async def run(args: Args, ctx: Context) -> Result:
    answer = await ctx.mcp_resources.read(ctx.session, args.server, args.uri, ctx)
    given = answer.get("contents")
    contents, attached = _split_blobs(given if isinstance(given, list) else [])
    page = {"server": args.server, "uri": args.uri, **answer, "contents": contents}
    return Result(dumps(page).decode(), args.uri, {"count": len(contents)}, tuple(attached))


def _split_blobs(contents: list[Any]) -> tuple[list[Any], list[Attachment]]:
    """Texts stay where they are; what is in base64 goes along as files, as far as there is room."""
    shown: list[Any] = []
    attached: list[Attachment] = []
    room = MAX_ATTACHED_BYTES
    for one in contents:
        if not isinstance(one, dict) or not isinstance(one.get("blob"), str):
            shown.append(one)
            continue
        data, reason = _decoded(one["blob"], room)
        if data is not None:
            room -= len(data)
            attached.append(attach(data, _mime(one), _name(str(one.get("uri", "")))))
            reason = f"{len(data):,} bytes, attached as file {len(attached)}"
        shown.append({name: value for name, value in one.items() if name != "blob"} | {"blob": f"[{reason}]"})
    return shown, attached


def _decoded(blob: str, room: int) -> tuple[bytes | None, str]:
    try:
        data = base64.b64decode("".join(blob.split()), validate=True)
    except (binascii.Error, ValueError):
        return None, "left out: its base64 cannot be read"
    if len(data) > room:
        return None, f"left out: it has {len(data):,} bytes, and a call keeps {MAX_ATTACHED_BYTES:,} of all attachments"
    return data, ""


def _mime(one: Raw) -> str:
    mime = one.get("mimeType")
    is_plain = isinstance(mime, str) and mime.isascii() and mime.isprintable() and not {",", ";", " "} & set(mime)
    return mime if isinstance(mime, str) and is_plain and mime else ANY_BYTES


def _name(uri: str) -> str | None:
    last = uri.rstrip("/").rpartition("/")[2]
    return "".join(char for char in last if char.isprintable() and char not in '\\"?#')[:128] or None


tool = typed(
    Args,
    name="read_mcp_resource",
    title="Read MCP resource",
    description="Read one resource of an MCP server, by the server's name and the resource's address.",
    effect=Effect.READ,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    permission="mcp",
)
