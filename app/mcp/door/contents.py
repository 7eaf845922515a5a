"""Contents: a resource that was read by a call, as its server gave it."""

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.jsons import Raw
from app.dispatch.attachments import Attached, load
from app.mcp.door.callers import INTERNAL_ERROR, refusal, refused
from app.store import outputs

if TYPE_CHECKING:
    from app.mcp.door.callers import Ctx

_FILE = re.compile(r"attached as file (\d+)\]$")
PIECE = 1024 * 1024


async def contents_of(engine: AsyncEngine, ctx: "Ctx", call: Call) -> Raw:
    """What `resources/read` answers; raises an error of the protocol for a call that failed.

    The tool writes the server's answer as its output, with the files of it attached; here they come together again.
    """
    result, page = await _given(engine, ctx, call)
    attached = await load(engine, call.id, result["attachments"])
    said = {name: value for name, value in page.items() if name not in ("server", "uri")}
    return said | {"contents": [_one(content, attached) for content in page["contents"]]}


async def messages_of(engine: AsyncEngine, ctx: "Ctx", call: Call) -> Raw:
    """What `prompts/get` answers, likewise."""
    _, page = await _given(engine, ctx, call)
    return page


async def _given(engine: AsyncEngine, ctx: "Ctx", call: Call) -> tuple[Raw, Raw]:
    """The result of a call, and the server's answer in it."""
    if call.error is not None:
        raise refused(json.loads(call.error), ctx)
    if call.result is None:
        raise refusal(f"The service stops, and call {call.id} goes on when it is back.", INTERNAL_ERROR)
    result = json.loads(call.result)
    try:
        page: Raw = json.loads(await _whole(engine, call.id, result))
    except ValueError:
        raise refusal("What the server gave is more than is kept of a call.", INTERNAL_ERROR) from None
    return result, page


async def _whole(engine: AsyncEngine, call: str, result: dict[str, Any]) -> str:
    """The output; if it was cut, what is kept of it in full."""
    if result["metadata"].get("truncated") is not True:
        return str(result["output"])
    pieces, offset = list[bytes](), 0
    while found := await outputs.chunks(engine, call, offset, PIECE):
        pieces += [data for _, _, data in found]
        offset = found[-1][0] + len(found[-1][2])
    return b"".join(pieces).decode()


def _one(content: Any, attached: list[Attached]) -> Any:
    """One of the contents, with its bytes in it again; where there are none, with the reason."""
    if not isinstance(content, dict) or "blob" not in content:
        return content
    found = _FILE.search(str(content["blob"]))
    data = attached[int(found[1]) - 1][1] if found and int(found[1]) <= len(attached) else None
    if data is not None:
        return content | {"blob": base64.b64encode(data).decode()}
    bare = {name: value for name, value in content.items() if name != "blob"}
    return bare | {"mimeType": "text/plain", "text": content["blob"]}
