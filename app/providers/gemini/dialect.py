"""gemini: generateContent of the Gemini API and of Vertex. Calls and results are parts of a content.

`gemini-openapi` declares tools in the older OpenAPI subset, for servers without `parametersJsonSchema`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from app.core.runs import Json, Media, Reply, ToolOffer
from app.providers import reply_content
from app.providers.dialects import Choice, Dialect, Exported, ExportOptions, NameRule, Quirks, Supports, Wire
from app.providers.gemini.calls import read_calls
from app.providers.gemini.schema import to_openapi
from app.providers.reply_content import PDF, media_type, text_with_placeholders
from app.providers.tool_limits import FittedTool, fit, supported_mode, warn_unsupported, wire_name

NAMES = NameRule(re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*"))
"""Accepted by older and newer versions."""
MODES = {"auto": "AUTO", "required": "ANY", "tool": "ANY", "none": "NONE"}
IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
RESERVED = frozenset({"output", "error"})
STRICT = "Gemini has no strict tools: calls are checked in the mode VALIDATED of toolConfig, for all tools at once."


def _export(
    offers: Sequence[ToolOffer], options: ExportOptions, declare: Callable[[FittedTool, list[str]], Wire]
) -> Exported:
    exported = Exported(warnings=[STRICT] if options.strict == "on" else [])
    warn_unsupported(options, offers, ("cache", "defer", "namespace", "native"), exported.warnings)
    fitted = fit(offers, options.quirks, exported.warnings)
    if declarations := [declare(tool, exported.warnings) for tool in fitted]:
        exported.tools = [{"functionDeclarations": declarations}]
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    mode, names = chosen_mode(choice, quirks, warnings)
    if mode is None:
        return {"tools": tools}
    config: Wire = {"mode": mode} | ({"allowedFunctionNames": names} if names else {})
    return {"tools": tools, "toolConfig": {"functionCallingConfig": config}}


def chosen_mode(choice: Choice, quirks: Quirks, warnings: list[str]) -> tuple[str | None, list[str]]:
    """The mode, if specified, and the allowed tools. Names need a mode that checks calls: ANY, or VALIDATED, in which
    the model may also answer without a call."""
    mode = supported_mode(choice, quirks, warnings)
    names = [choice.name or ""] if mode == "tool" else [] if mode == "none" else list(choice.allowed)
    if mode is None and not names:
        return None, []
    gemini_mode = MODES[mode or "auto"]
    if names and gemini_mode == "AUTO":
        gemini_mode = "VALIDATED"
    return gemini_mode, [wire_name(name, quirks.names) for name in names]


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    if not replies:
        return []
    return [{"role": "user", "parts": [{"functionResponse": _response(reply)} for reply in replies]}]


def _declaration(tool: FittedTool, warnings: list[str]) -> Wire:
    return _name_and_description(tool) | {"parametersJsonSchema": tool.schema}


def _openapi_declaration(tool: FittedTool, warnings: list[str]) -> Wire:
    """Gemini rejects an object without properties, so a tool without arguments has no `parameters`."""
    schema, lost = to_openapi(tool.schema)
    if not schema.get("properties") and tool.schema.get("additionalProperties"):
        lost = ["it takes arguments of any name"]
    warnings += [f"The schema of {tool.name} is offered without a part of it: {reason}." for reason in lost]
    return _name_and_description(tool) | ({"parameters": schema} if schema.get("properties") else {})


def _name_and_description(tool: FittedTool) -> Wire:
    return {"name": tool.name} | ({"description": tool.description} if tool.description else {})


def _response(reply: Reply) -> Wire:
    """Without an id the response is matched by name and position."""
    response: Wire = {} if reply.call.id is None else {"id": reply.call.id}
    response |= {"name": reply.call.name, "response": _content(reply)}
    names: set[str] = set()
    if files := [media for media in reply_content.media_of(reply) if _is_sent(media)]:
        response["parts"] = [{"inlineData": _inline(media, names)} for media in files]
    return response


def _content(reply: Reply) -> Wire:
    """A JSON object is sent as it is, unless Gemini would take it for an error."""
    if reply.error is not None:
        return {"error": text_with_placeholders(reply, _is_sent)}
    match reply.parts:
        case (Json(dict(value)),) if not value.keys() & RESERVED:
            return value
        case (Json(value),):
            return {"output": value}
    attached = [reply_content.placeholder(media) for media in reply_content.media_of(reply)]
    return {"output": text_with_placeholders(reply, _is_sent) or "\n".join(attached) or reply_content.NO_OUTPUT}


def _is_sent(media: Media) -> bool:
    kind = media_type(media)
    return media.data is not None and (kind in IMAGES or kind == PDF or kind.startswith("text/"))


def _inline(media: Media, names: set[str]) -> Wire:
    """Every text type is sent as text/plain. `names` are those in use, as each may be used once."""
    kind = media_type(media)
    data: Wire = {"mimeType": "text/plain" if kind.startswith("text/") else kind, "data": media.data}
    if media.name and media.name not in names:
        names.add(media.name)
        data["displayName"] = media.name
    return data


dialect = Dialect(
    name="gemini",
    title="Gemini generateContent",
    export_tools=partial(_export, declare=_declaration),
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(images=True, files=True),
    quirks=Quirks(names=NAMES, max_tools=512, has_parallel_choice=False),
    numbers_calls=True,
)
openapi_dialect = replace(
    dialect,
    name="gemini-openapi",
    title="Gemini generateContent, definitions in the older OpenAPI subset",
    export_tools=partial(_export, declare=_openapi_declaration),
)
