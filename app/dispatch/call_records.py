"""Calls on their way in and out: made of a request, turned back into one, read as an outcome."""

import json

from app.core.calls import Call, CallRequest
from app.core.errors import CallError
from app.core.results import Attachment, Result
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch.redaction import Originals


def given_to(request: CallRequest) -> Originals:
    """What a request brings along, as it is kept."""
    return Originals(None if request.arguments is None else dumps(request.arguments).decode(), request.input)


def of_request(id: str, at: int, request: CallRequest, session: Session, parent: str | None, key: str | None) -> Call:
    given = given_to(request)
    return Call(
        id=id,
        principal=session.principal,
        tool=request.tool,
        created_at=at,
        session=session.id,
        arguments=given.arguments,
        input=given.input,
        call_id=request.call_id,
        message_id=request.message_id,
        parent=parent,
        metadata=None if request.metadata is None else dumps(request.metadata).decode(),
        options=_options(request),
        key=key,
    )


def _options(request: CallRequest) -> str | None:
    """What a resumed call must still know of its request."""
    if request.timeout is None and request.ask_timeout is None and request.on_ask is None:
        return None
    return dumps(request.model_dump(include={"timeout", "ask_timeout", "on_ask"}, exclude_none=True)).decode()


def to_request(call: Call, given: Originals) -> CallRequest:
    """The request of a call that an earlier service accepted, with what was really sent."""
    return CallRequest(
        tool=call.tool,
        arguments=None if given.arguments is None else json.loads(given.arguments),
        input=given.input,
        call_id=call.call_id,
        message_id=call.message_id,
        **(json.loads(call.options) if call.options else {}),
    )


def outcome(call: Call) -> Result:
    """What a call that has ended gave: its result, or its error raised."""
    result = _result(call)
    if call.error is None:
        return result or Result()
    body = json.loads(call.error)
    failed = CallError(body["message"], details=body.get("details"), result=result)
    failed.code = body["code"]
    raise failed


def _result(call: Call) -> Result | None:
    if call.result is None:
        return None
    body = json.loads(call.result)
    return Result(**body | {"attachments": tuple(Attachment(**item) for item in body["attachments"])})
