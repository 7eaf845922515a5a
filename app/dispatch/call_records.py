"""Conversions between requests, call records and results."""

import json

from app.core.calls import Call, CallRequest
from app.core.errors import CallError
from app.core.results import Attachment, Result
from app.core.sessions import Session
from app.core.util.json_codec import dumps
from app.dispatch.redaction import Originals


def originals_of(request: CallRequest) -> Originals:
    return Originals(None if request.arguments is None else dumps(request.arguments).decode(), request.input)


def of_request(id: str, at: int, request: CallRequest, session: Session, parent: str | None, key: str | None) -> Call:
    originals = originals_of(request)
    return Call(
        id=id,
        principal=session.principal,
        tool=request.tool,
        created_at=at,
        session=session.id,
        arguments=originals.arguments,
        input=originals.input,
        call_id=request.call_id,
        message_id=request.message_id,
        parent=parent,
        metadata=None if request.metadata is None else dumps(request.metadata).decode(),
        options=_options(request),
        key=key,
    )


def _options(request: CallRequest) -> str | None:
    """The options of a request that a resumed call still needs."""
    if request.timeout is None and request.ask_timeout is None and request.on_ask is None:
        return None
    return dumps(request.model_dump(include={"timeout", "ask_timeout", "on_ask"}, exclude_none=True)).decode()


def to_request(call: Call, originals: Originals) -> CallRequest:
    """The request of a call that an earlier start accepted."""
    return CallRequest(
        tool=call.tool,
        arguments=None if originals.arguments is None else json.loads(originals.arguments),
        input=originals.input,
        call_id=call.call_id,
        message_id=call.message_id,
        **(json.loads(call.options) if call.options else {}),
    )


def outcome(call: Call) -> Result:
    """The result of a call that has ended; raises its error."""
    result = None
    if call.result is not None:
        stored = json.loads(call.result)
        result = Result(**stored | {"attachments": tuple(Attachment(**item) for item in stored["attachments"])})
    if call.error is None:
        return result or Result()
    body = json.loads(call.error)
    failed = CallError(body["message"], details=body.get("details"), result=result)
    failed.code = body["code"]
    raise failed
