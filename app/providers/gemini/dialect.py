"""gemini: generateContent of the Gemini API and of Vertex. Calls and results are parts of a content.

`gemini-openapi` is the same with definitions in the older subset of OpenAPI, for servers that know nothing else.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from app.core.runs import Json, Media, Reply, ToolOffer
from app.providers import reply_content
from app.providers.dialects import Choice, Dialect, Exported, ExportOptions, NameRule, Quirks, Supports, Wire
from app.providers.gemini.calls import read_calls
from app.providers.gemini.schema import to_openapi
from app.providers.reply_content import PDF, media_type, text_with_placeholders
from app.providers.tool_limits import FittedTool, fit, supported_mode, warn_unsupported, wire_name

NAMES = NameRule(re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*"))
"""What older and newer versions both take."""
MODES = {"auto": "AUTO", "required": "ANY", "tool": "ANY", "none": "NONE"}
IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
RESERVED = frozenset({"output", "error"})
STRICT = "Gemini has no strict tools: calls are checked in the mode VALIDATED of toolConfig, for all tools at once."


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported(warnings=_refused(offers, options))
    declared = [_declared(tool) for tool in fit(offers, options.quirks, exported.warnings)]
    exported.tools = [{"functionDeclarations": declared}] if declared else []
    return exported


def export_openapi(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported(warnings=_refused(offers, options))
    fitted = fit(offers, options.quirks, exported.warnings)
    declared = [_declared_openapi(tool, exported.warnings) for tool in fitted]
    exported.tools = [{"functionDeclarations": declared}] if declared else []
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    said, names = chosen(choice, quirks, warnings)
    if said is None:
        return {"tools": tools}
    config: Wire = {"mode": said} | ({"allowedFunctionNames": names} if names else {})
    return {"tools": tools, "toolConfig": {"functionCallingConfig": config}}


def chosen(choice: Choice, quirks: Quirks, warnings: list[str]) -> tuple[str | None, list[str]]:
    """The mode, if anything is to be said of it, and the tools it is narrowed to. Names can be given only where a call
    is checked: with ANY, or with VALIDATED, which leaves the model free."""
    mode = supported_mode(choice, quirks, warnings)
    names = [choice.name or ""] if mode == "tool" else [] if mode == "none" else list(choice.allowed)
    if mode is None and not names:
        return None, []
    said = MODES[mode or "auto"]
    return "VALIDATED" if names and said == "AUTO" else said, [wire_name(name, quirks.names) for name in names]


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    if not replies:
        return []
    return [{"role": "user", "parts": [{"functionResponse": _response(reply)} for reply in replies]}]


def _refused(offers: Sequence[ToolOffer], options: ExportOptions) -> list[str]:
    warnings = [STRICT] if options.strict == "on" else []
    warn_unsupported(options, offers, ("cache", "defer", "namespace", "native"), warnings)
    return warnings


def _declared(tool: FittedTool) -> Wire:
    return _named(tool) | {"parametersJsonSchema": tool.schema}


def _declared_openapi(tool: FittedTool, warnings: list[str]) -> Wire:
    """An object without properties is refused, so what takes no arguments says nothing of them."""
    schema, lost = to_openapi(tool.schema)
    if not schema.get("properties") and tool.schema.get("additionalProperties"):
        lost = ["it takes arguments of any name"]
    warnings += [f"The schema of {tool.name} is offered without a part of it: {reason}." for reason in lost]
    return _named(tool) | ({"parameters": schema} if schema.get("properties") else {})


def _named(tool: FittedTool) -> Wire:
    return {"name": tool.name} | ({"description": tool.description} if tool.description else {})


def _response(reply: Reply) -> Wire:
    """Without an id the answer is known by its name and place, so none is made up."""
    made: Wire = {} if reply.call.id is None else {"id": reply.call.id}
    made |= {"name": reply.call.name, "response": _said(reply)}
    names: set[str] = set()
    if files := [media for media in reply_content.media_of(reply) if _is_sent(media)]:
        made["parts"] = [{"inlineData": _inline(media, names)} for media in files]
    return made


def _said(reply: Reply) -> Wire:
    """An object of its own stands for itself, unless it would be taken for an error."""
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
    """Of texts only plain ones are known, and any text is one. A name may be used once, so `names` are those taken."""
    kind = media_type(media)
    made: Wire = {"mimeType": "text/plain" if kind.startswith("text/") else kind, "data": media.data}
    if media.name and media.name not in names:
        names.add(media.name)
        made["displayName"] = media.name
    return made


dialect = Dialect(
    name="gemini",
    title="Gemini generateContent",
    export_tools=export_tools,
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
    export_tools=export_openapi,
)
