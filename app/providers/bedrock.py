"""bedrock: Converse of Amazon Bedrock. Calls are `toolUse` blocks, and all results of a turn go back in one message.

Bytes are base64 here, as they are on the wire; a client that takes bytes itself is given them decoded.
"""

from collections.abc import Sequence

from app.core.runs import ToolOffer
from app.providers.bedrock_calls import read_calls
from app.providers.bedrock_results import write_results
from app.providers.closed import Allowance, allowance_for
from app.providers.dialects import COMMON, Choice, Dialect, Exported, ExportOptions, Quirks, Supports, Wire
from app.providers.fittings import Fitted, fit, mode_of, refuse
from app.providers.names import wire_name

NO_TOOLS = (
    "Bedrock cannot be told to use no tools; they are left out of the request, which a conversation with calls in it "
    "may not allow."
)


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    exported = Exported()
    refuse(options, offers, ("defer", "namespace", "native"), exported.warnings)
    allowance = allowance_for(options, exported.warnings)
    for tool in fit(offers, options.quirks, exported.warnings):
        exported.tools.append({"toolSpec": _spec(tool, allowance, exported.warnings)})
    if options.cache is not None and exported.tools:
        point = {"type": "default"} | ({"ttl": "1h"} if options.cache == "1h" else {})
        exported.tools.append({"cachePoint": point})
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    """Without tools there is no `toolConfig` either: it may not be empty."""
    if choice.mode == "none":
        warnings.append(NO_TOOLS)
        return {}
    mode = mode_of(choice, quirks, warnings)
    if choice.allowed:
        warnings.append("Bedrock has no list of allowed tools; the others are left out of the request.")
        tools = _narrowed(tools, {wire_name(name, quirks.names) for name in choice.allowed})
    if not tools:
        return {}
    config: Wire = {"tools": tools}
    match mode:
        case "auto":
            config["toolChoice"] = {"auto": {}}
        case "required":
            config["toolChoice"] = {"any": {}}
        case "tool":
            config["toolChoice"] = {"tool": {"name": wire_name(choice.name or "", quirks.names)}}
    return {"toolConfig": config}


def _spec(tool: Fitted, allowance: Allowance | None, warnings: list[str]) -> Wire:
    """The description may not be empty."""
    is_described = bool(tool.description.strip())
    made: Wire = {
        "name": tool.name,
        "description": tool.description if is_described else tool.offer.title or tool.name,
        "inputSchema": {"json": tool.schema},
    }
    if allowance is not None and (closed := allowance.close(tool, warnings)) is not None:
        made |= {"inputSchema": {"json": closed}, "strict": True}
    return made


def _narrowed(tools: list[Wire], names: set[str]) -> list[Wire]:
    kept = [tool for tool in tools if "toolSpec" in tool and tool["toolSpec"]["name"] in names]
    points = [tool for tool in tools if "cachePoint" in tool]
    return [*kept, *points] if kept else []


dialect = Dialect(
    name="bedrock",
    title="Amazon Bedrock Converse",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(
        strict=True,
        images=True,
        files=True,
        note="Files are base64, as on the wire; a client that takes bytes must be given them decoded.",
    ),
    quirks=Quirks(
        strict="on_request",
        names=COMMON,
        modes=frozenset({"auto", "required", "tool"}),
        says_parallel=False,
    ),
)
