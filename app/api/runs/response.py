"""Runs on their way out: what became of the calls, written in the dialect the message came in."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import Scope

from app.api.auth import Services
from app.api.create_call import settled
from app.api.http.json_body import JSON
from app.api.http.problems import Problem
from app.api.runs.submit import StartedRun
from app.core.calls import Call, CallRequest
from app.core.runs import Media, Run, Text
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch.attachments import load
from app.dispatch.live_calls import LiveCall
from app.providers.dialects import Dialect, Wire
from app.providers.parallel_wrapper import merge
from app.providers.provider_aliases import without_unseen
from app.providers.replies import FinishedCall, is_blocked, reply_to
from app.providers.reply_content import placeholder
from app.store import calls

MOST_SENT = 16 * 1024 * 1024
"""Bytes of a file that is sent along; a larger one is to be fetched."""


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """How an answer is written: the dialect, where the service is found, what comes before the outputs."""

    dialect: Dialect
    base: str
    replayed: Sequence[Wire] = ()


async def lives_of(services: Services, run: Run) -> list[LiveCall]:
    """The calls of a run, as they are under way or as they ended."""
    ids = [id for group in run.calls for id in group]
    under_way = {id: live for id in ids if (live := services.dispatcher.running.get(id)) is not None}
    stored = await calls.get_many(services.engine, set(ids) - under_way.keys())
    if len(under_way) + len(stored) < len(set(ids)):
        raise Problem(410, "RunGone", f"Calls of the run {run.id} were removed, so there is no answer any more.")
    session = Session(run.principal, run.session)
    return [under_way.get(id) or _ended(stored[id], session) for id in ids]


def _ended(call: Call, session: Session) -> LiveCall:
    """One that does not run here: it has ended, or another start will go on with it."""
    live = LiveCall(call, CallRequest(tool=call.tool), session)
    live.done()
    return live


async def answer_of(scope: Scope, services: Services, begun: StartedRun, letter: ResponseFormat) -> Response:
    body = await body_of(services, begun, letter)
    if not body["pending"]:
        return Response(dumps(body), media_type=JSON)
    headers = {"Location": f"{scope.get('root_path', '')}/v1/run/{begun.run.id}"}
    return Response(dumps(body), 202, headers, JSON)


async def body_of(services: Services, begun: StartedRun, letter: ResponseFormat) -> dict[str, Any]:
    """The answer: what to append once all calls have ended, until then nothing."""
    run = begun.run
    ended = [await settled(services, live) for live in begun.lives]
    pending = [call.id for call in ended if not call.is_final]
    body = {
        "id": run.id,
        "dialect": run.dialect,
        "append": [] if pending else [*letter.replayed, *await _outputs(services, run, letter, ended)],
        "calls": [call.view() for call in ended],
        "pending": pending,
        "blocked": any(is_blocked(from_json(call.error)) for call in ended if call.error),
    }
    return body | ({"previous_response_id": run.previous} if run.previous else {})


async def _outputs(services: Services, run: Run, letter: ResponseFormat, ended: Sequence[Call]) -> list[Wire]:
    ends = iter([await _end(services, call, letter.base) for call in ended])
    replies = [reply_to(asked, [next(ends) for _ in group]) for asked, group in zip(run.asked, run.calls, strict=True)]
    return letter.dialect.write_results(without_unseen(merge(replies), letter.dialect.supports))


async def _end(services: Services, call: Call, base: str) -> FinishedCall:
    result = from_json(call.result) if call.result else None
    error = from_json(call.error) if call.error else None
    files = await _files(services, call.id, result["attachments"], base) if result and result["attachments"] else ()
    return FinishedCall(result, error, files)


async def _files(services: Services, call: str, listed: list[dict[str, Any]], base: str) -> tuple[Media | Text, ...]:
    """The files of a result, with where each is to be had by those who cannot take it as it is."""
    found = enumerate(await load(services.engine, call, listed))
    return tuple(_file(about, data, f"{base}/v1/calls/{call}/attachments/{number}") for number, (about, data) in found)


def _file(about: dict[str, Any], data: bytes | None, url: str) -> Media | Text:
    mime, name = about["mime"], about["filename"]
    if data is None:
        return Media(mime=mime, name=name, url=about["url"])
    if len(data) > MOST_SENT:  # which only those can fetch who have a key
        return Text(placeholder(Media(mime=mime, name=name, url=url)))
    return Media(mime=mime, name=name, data=base64.b64encode(data).decode(), url=url)
