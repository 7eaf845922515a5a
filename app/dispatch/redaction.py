"""Redaction on the line: what is kept and told of a call, without its secrets; what was really sent, sealed."""

import codecs
import json
from dataclasses import dataclass, replace

from app.core.calls import Call
from app.core.errors import CallError
from app.core.ports import Sealer
from app.core.redaction import OutputStream, Redactor
from app.core.results import Result
from app.core.util.json_codec import dumps

PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Originals:
    """What a call was given, before anything was redacted: JSON text, or free text."""

    arguments: str | None
    input: str | None
    effective: str | None = None


class CallRedactor:
    """Every text of a call passes here before it is written."""

    def __init__(self, redactor: Redactor, sealer: Sealer) -> None:
        self._redactor = redactor
        self._sealer = sealer

    def call(self, call: Call) -> None:
        """Redact a new call in place; if that changed anything, the originals are sealed until its end."""
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

    def settled(self, call: Call, given: Originals, effective: str) -> tuple[str, bytes | None]:
        """The effective arguments as they may be kept, and the seal that goes with them."""
        kept = self._redactor.json(effective)
        if call.sealed is None and kept == effective:
            return kept, None
        return kept, self._seal(call, replace(given, effective=effective))

    def originals(self, call: Call) -> Originals:
        """What a call was really given. Raises `SealBroken` when that cannot be read any more."""
        if call.sealed is None:
            return Originals(call.arguments, call.input, call.effective)
        return Originals(**json.loads(self._sealer.open(call.sealed, call.id)))

    def result(self, result: Result) -> Result:
        """Before it is cut: half a secret would not be found any more."""
        output = self._redactor.text(result.output, is_output=True)
        return result if output == result.output else replace(result, output=output)

    def output(self) -> OutputStream:
        return self._redactor.stream()

    def data(self, data: bytes) -> bytes:
        """The bytes of a file, piece by piece. What is no text in them comes through as it is."""
        stream, decoder = self._redactor.stream(), codecs.getincrementaldecoder("utf-8")("surrogateescape")
        texts = [stream.feed(decoder.decode(data[at : at + PIECE])) for at in range(0, len(data), PIECE)]
        texts.append(stream.feed(decoder.decode(b"", final=True)) + stream.finish())
        return b"".join(text.encode("utf-8", "surrogateescape") for text in texts)

    def kept_result(self, result: Result) -> str:
        return self._redactor.json(dumps(result).decode(), is_output=True)

    def kept_error(self, error: CallError) -> str:
        return self._redactor.json(dumps(error.as_dict()).decode())

    def kept_data(self, text: str) -> str:
        """The data of an event, or a plan."""
        return self._redactor.json(text)

    def text(self, text: str) -> str:
        """A piece of text that is shown to people."""
        return self._redactor.text(text)

    def _seal(self, call: Call, given: Originals) -> bytes:
        return self._sealer.seal(dumps(given), call.id)
