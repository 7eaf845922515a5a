"""Writes the results of a run in the dialect of its message."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.runs import Media, Run, Text
from app.dispatch.attachments import load
from app.dispatch.live_calls import committed_call
from app.providers.dialects import Dialect, Wire
from app.providers.registry import replace_unsupported_media
from app.providers.reply_content import FinishedCall, is_blocked, placeholder, reply_to
from app.runs.submit import StartedRun

MAX_INLINE_BYTES = 16 * 1024 * 1024
"""Files up to this size are sent inline; of larger ones only the URL is sent."""


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """How a response is written: the dialect, the service's base URL, and what is replayed before the outputs."""

    dialect: Dialect
    base_url: str
    replayed: Sequence[Wire] = ()


async def render_run(engine: AsyncEngine, started: StartedRun, response_format: ResponseFormat) -> dict[str, Any]:
    """The response body. `append` is empty until all calls have ended."""
    run = started.run
    calls = [await committed_call(engine, live) for live in started.lives]
    pending = [call.id for call in calls if not call.is_final]
    body = {
        "id": run.id,
        "dialect": run.dialect,
        "append": [] if pending else [*response_format.replayed, *await _outputs(engine, run, response_format, calls)],
        "calls": [call.view() for call in calls],
        "pending": pending,
        "blocked": any(is_blocked(from_json(call.error)) for call in calls if call.error),
    }
    return body | ({"previous_response_id": run.previous} if run.previous else {})


async def _outputs(engine: AsyncEngine, run: Run, response_format: ResponseFormat, calls: Sequence[Call]) -> list[Wire]:
    finished = iter([await _finished(engine, call, response_format.base_url) for call in calls])
    replies = [
        reply_to(call, [next(finished) for _ in group]) for call, group in zip(run.asked, run.calls, strict=True)
    ]
    return response_format.dialect.write_results(replace_unsupported_media(replies, response_format.dialect.supports))


async def _finished(engine: AsyncEngine, call: Call, base_url: str) -> FinishedCall:
    result = from_json(call.result) if call.result else None
    error = from_json(call.error) if call.error else None
    files: list[Media | Text] = []
    if result and result["attachments"]:
        for number, (info, data) in enumerate(await load(engine, call.id, result["attachments"])):
            files.append(_file(info, data, f"{base_url}/v1/calls/{call.id}/attachments/{number}"))
    return FinishedCall(result, error, tuple(files))


def _file(info: dict[str, Any], data: bytes | None, url: str) -> Media | Text:
    mime, name = info["mime"], info["filename"]
    if data is None:
        return Media(mime=mime, name=name, url=info["url"])
    if len(data) > MAX_INLINE_BYTES:  # the model's provider has no key to fetch it
        return Text(placeholder(Media(mime=mime, name=name, url=url)))
    return Media(mime=mime, name=name, data=base64.b64encode(data).decode(), url=url)
