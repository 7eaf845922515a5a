"""gemini-interactions: Gemini's Interactions API. Calls and results are steps, and arguments stream as pieces of JSON.

What is appended goes into `input`: behind the steps so far, or alone with `previous_interaction_id`.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from app.core.runs import Json, Known, Media, ModelCall, ParsedMessage, Reply, ToolOffer, Unreadable
from app.providers import call_arguments, reply_content
from app.providers.dialects import Choice, Dialect, Exported, ExportOptions, Quirks, Supports, Wire
from app.providers.gemini.dialect import IMAGES, NAMES, chosen_mode
from app.providers.reply_content import PDF, media_type, text_with_placeholders
from app.providers.tool_limits import fit, warn_unsupported

IMAGE_TYPES = IMAGES | {"image/gif", "image/bmp", "image/tiff"}
DOCUMENTS = frozenset({PDF, "text/csv"})
UNFINISHED = ("failed", "cancelled", "incomplete", "budget_exceeded", "requires_continuation")
TALK = ("model_output", "thought", "user_input")
_NO_MESSAGE = "This is no interaction: one with its `steps`, a list of steps or the events of a stream is expected."


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    warn_unsupported(options, offers, ("strict", "cache", "defer", "namespace", "native"), exported.warnings)
    for tool in fit(offers, options.quirks, exported.warnings):
        described = {"description": tool.description} if tool.description else {}
        exported.tools.append({"type": "function", "name": tool.name, **described, "parameters": tool.schema})
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    gemini_mode, names = chosen_mode(choice, quirks, warnings)
    if gemini_mode is None:
        return {"tools": tools}
    mode = gemini_mode.lower()
    tool_choice = {"allowed_tools": {"mode": mode, "tools": names}} if names else mode
    return {"tools": tools, "generation_config": {"tool_choice": tool_choice}}


def read_calls(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"steps": list(steps)}:
            cut = range(len(steps)) if message.get("status") in UNFINISHED else ()
            return _parse_steps(steps, message.get("id"), cut, is_response=True)
        case {"status": str()} if "type" not in message:
            return ParsedMessage(message_id=_text(message.get("id")), is_response=True)
        case dict() if _is_step(message):
            return _parse_steps([message])
        case [{"event_type": str()}, *_]:
            return _parse_stream(message)
        case list() if not message or any(_is_step(step) for step in message):
            return _parse_steps(message)
    raise Unreadable(_NO_MESSAGE)


def _parse_steps(
    steps: list[Any], id: Any = None, cut: Collection[int] = (), *, is_response: bool = False
) -> ParsedMessage:
    """An interaction may hold earlier turns: what has its result already is not called again. `cut` are the places of
    steps that were not finished."""
    if not all(isinstance(step, dict) and isinstance(step.get("type"), str) for step in steps):
        raise Unreadable(_NO_MESSAGE)
    answered = {_text(step.get("call_id")) for step in steps if step["type"] == "function_result"}
    called = [
        (step, place in cut)
        for place, step in enumerate(steps)
        if step["type"] == "function_call" and (not step.get("id") or _text(step["id"]) not in answered)
    ]
    return ParsedMessage(
        calls=tuple(_call(step, is_cut) for step, is_cut in called),
        text="".join(text for step in steps for text in _texts(step)),
        message_id=_text(id),
        is_response=is_response,
    )


def _is_step(value: Any) -> bool:
    """There will be more kinds of them, beside one that is known."""
    match value:
        case {"type": str(kind)}:
            return kind in TALK or kind.endswith(("_call", "_result"))
    return False


def _call(step: Wire, is_cut: bool) -> ModelCall:
    name, raw = step.get("name"), step.get("arguments")
    if not isinstance(name, str) or not name:
        raise Unreadable("A function_call needs a name.")
    arguments = call_arguments.incomplete(raw if isinstance(raw, str) else "") if is_cut else call_arguments.parse(raw)
    return ModelCall(id=_text(step.get("id")) or None, name=name, **arguments)


def _texts(step: Wire) -> Iterator[str]:
    content = step.get("content") if step["type"] == "model_output" else None
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            yield part["text"]


def _parse_stream(events: list[Any]) -> ParsedMessage:
    """The steps of a stream's events. A step without `step.stop` was cut off."""
    streamed: dict[int, _StreamedStep] = {}
    id: Any = None
    for event in events:
        match event:
            case {"event_type": "step.start", "index": int(index), "step": dict(step)}:
                streamed[index] = _StreamedStep(step)
            case {"event_type": "step.delta", "index": int(index), "delta": dict(delta)} if index in streamed:
                streamed[index].add(delta)
            case {"event_type": "step.stop", "index": int(index)} if index in streamed:
                streamed[index].is_open = False
            case {"interaction": dict(interaction)}:
                id = interaction.get("id") or id
            case {"event_type": str()}:
                pass
            case _:
                raise Unreadable(_NO_MESSAGE)
    steps = [streamed[index] for index in sorted(streamed)]
    cut = {index for index, step in enumerate(steps) if step.is_open}
    return _parse_steps([step.whole() for step in steps], id, cut)


class _StreamedStep:
    """A step that arrives in deltas."""

    def __init__(self, start: Wire) -> None:
        self.is_open = True
        self._start = start
        self._arguments: list[str] = []
        self._texts: list[Wire] = []

    def add(self, delta: Wire) -> None:
        match delta:
            case {"type": "arguments_delta", "arguments": str(piece)}:
                self._arguments.append(piece)
            case {"type": "text", "text": str()}:
                self._texts.append(delta)

    def whole(self) -> Wire:
        content = self._start.get("content")
        arguments = {"arguments": "".join(self._arguments)} if self._arguments else {}
        texts = {"content": [*(content if isinstance(content, list) else []), *self._texts]} if self._texts else {}
        return self._start | arguments | texts


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _answer(reply: Reply) -> Wire:
    failed = {} if reply.error is None else {"is_error": True}
    called = {"call_id": reply.call.id or reply.call.name, "name": reply.call.name}
    return {"type": "function_result", **called, "result": _result(reply), **failed}


def _result(reply: Reply) -> Any:
    """A JSON object, a list of contents if there are files, else a text."""
    match reply.parts:
        case (Json(dict(value)),) if reply.error is None:
            return value
    files = [media for media in reply_content.media_of(reply) if _is_sent(media)]
    text = text_with_placeholders(reply, _is_sent)
    if not files:
        return text or reply_content.NO_OUTPUT
    return [*([{"type": "text", "text": text}] if text else []), *(_content(media) for media in files)]


def _is_sent(media: Media) -> bool:
    return media.data is not None and media_type(media) in IMAGE_TYPES | DOCUMENTS


def _content(media: Media) -> Wire:
    kind = media_type(media)
    return {"type": "image" if kind in IMAGE_TYPES else "document", "data": media.data, "mime_type": kind}


dialect = Dialect(
    name="gemini-interactions",
    title="Gemini Interactions",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=lambda replies: [_answer(reply) for reply in replies],
    supports=Supports(
        images=True,
        files=True,
        note="Send `append` as `input`, either with `previous_interaction_id` or after the previous steps.",
    ),
    quirks=Quirks(names=NAMES, max_tools=512, has_parallel_choice=False),
)
