"""Redaction of calls: what is stored and published has no secrets; the original arguments are sealed until the end."""

import codecs
import json
from dataclasses import dataclass, replace

from app.core.calls import Call
from app.core.errors import CallError
from app.core.ports import Sealer
from app.core.redaction import OutputStream, Redactor
from app.core.results import Result
from app.core.util.json_codec import dumps

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Originals:
    """The arguments (JSON text) or input of a call before redaction."""

    arguments: str | None
    input: str | None
    effective: str | None = None


class CallRedactor:
    """Every text of a call passes through this before it is stored or published."""

    def __init__(self, redactor: Redactor, sealer: Sealer) -> None:
        self._redactor = redactor
        self._sealer = sealer

    def redact_call(self, call: Call) -> None:
        """Redact a new call in place; if that changes anything, seal the originals until its end."""
        texts = (call.tool, call.arguments, call.input, call.call_id, call.message_id, call.metadata)
        if not self._redactor.finds("\0".join([text for text in texts if text])):
            return
        call.sealed = self._seal(call, Originals(call.arguments, call.input))
        call.tool = self._redactor.text(call.tool)
        call.arguments = call.arguments and self._redactor.json(call.arguments)
        call.input = call.input and self._redactor.text(call.input)
        call.call_id = call.call_id and self._redactor.text(call.call_id)
        call.message_id = call.message_id and self._redactor.text(call.message_id)
        call.metadata = call.metadata and self._redactor.json(call.metadata)

    def redact_arguments(self, call: Call, originals: Originals, effective: str) -> tuple[str, bytes | None]:
        """The effective arguments as they may be stored, and the sealed originals."""
        redacted = self._redactor.json(effective)
        if call.sealed is None and redacted == effective:
            return redacted, None
        return redacted, self._seal(call, replace(originals, effective=effective))

    def originals(self, call: Call) -> Originals:
        """The original arguments of a call. Raises `SealBroken` when they cannot be read any more."""
        if call.sealed is None:
            return Originals(call.arguments, call.input, call.effective)
        return Originals(**json.loads(self._sealer.open(call.sealed, call.id)))

    def redact_output(self, result: Result) -> Result:
        """Before truncation: half a secret would not be found any more."""
        output = self._redactor.text(result.output, is_output=True)
        return result if output == result.output else replace(result, output=output)

    def output_stream(self) -> OutputStream:
        return self._redactor.stream()

    def redact_bytes(self, data: bytes) -> bytes:
        """The bytes of a file, chunk by chunk. What is not UTF-8 passes unchanged."""
        stream, decoder = self._redactor.stream(), codecs.getincrementaldecoder("utf-8")("surrogateescape")
        texts = [stream.feed(decoder.decode(data[at : at + CHUNK_BYTES])) for at in range(0, len(data), CHUNK_BYTES)]
        texts.append(stream.feed(decoder.decode(b"", final=True)) + stream.finish())
        return b"".join(text.encode("utf-8", "surrogateescape") for text in texts)

    def redact_result(self, result: Result) -> str:
        return self._redactor.json(dumps(result).decode(), is_output=True)

    def redact_error(self, error: CallError) -> str:
        return self._redactor.json(dumps(error.as_dict()).decode())

    def redact_json(self, text: str) -> str:
        """The data of an event, or a plan, as JSON text."""
        return self._redactor.json(text)

    def redact_text(self, text: str) -> str:
        """A text that is shown to people."""
        return self._redactor.text(text)

    def _seal(self, call: Call, originals: Originals) -> bytes:
        return self._sealer.seal(dumps(originals), call.id)
