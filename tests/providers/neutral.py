"""The recorded cases' own words, turned into ours and back."""

import base64
from typing import Any

from app.core.runs import (
    CommandEnd,
    Failure,
    Json,
    Known,
    Media,
    ModelCall,
    Part,
    Reply,
    SearchResult,
    Text,
    ToolOffer,
    ToolReference,
)

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "location": {"type": "string", "description": "City and country"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["location"],
}
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n not really").decode()


def offer_of(tool: dict[str, Any]) -> ToolOffer:
    if "freeform" in tool:
        grammar = tool["freeform"].get("definition") if tool["freeform"]["syntax"] == "lark" else None
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        return ToolOffer(
            name=tool["name"], description=tool["description"], schema=schema, takes="input", grammar=grammar
        )
    return ToolOffer(name=tool["name"], description=tool["description"], schema=tool["input_schema"])


def offers_of(tools: list[dict[str, Any]]) -> list[ToolOffer]:
    return [offer_of(tool) for tool in tools]


def knowing(*offers: ToolOffer) -> Known:
    by_name = {offer.name: offer for offer in offers}
    return by_name.get


def reply_of(result: dict[str, Any]) -> Reply:
    call = ModelCall(
        id=result["call_id"],
        name=result.get("name", result.get("type", "")),
        type=result.get("type", "function"),
        arguments={"max_output_length": result["max_output_length"]} if "max_output_length" in result else {},
        caller=result.get("caller"),
        toolset=result.get("toolset"),
    )
    error = result.get("error")
    commands = result.get("commands", [result] if result.get("type") == "local_shell" else [])
    return Reply(
        call=call,
        parts=tuple(_part(part) for part in result.get("content", [])),
        error=None if error is None else Failure(error["code"], error["message"]),
        commands=tuple(
            CommandEnd(
                stdout=command["stdout"],
                stderr=command["stderr"],
                exit_code=None if command.get("timed_out") else command["exit_code"],
            )
            for command in commands
        ),
        tools=tuple(offers_of(result.get("tools", []))),
    )


def replies_of(results: list[dict[str, Any]]) -> list[Reply]:
    return [reply_of(result) for result in results]


def _part(part: dict[str, Any]) -> Part:
    match part["type"]:
        case "text":
            return Text(part["text"])
        case "json":
            return Json(part.get("value", part.get("json")))
        case "image" | "file":
            return Media(mime=part["mime"], data=part.get("data"), name=part.get("name"), url=part.get("url"))
        case "search_result":
            return SearchResult(source=part["source"], title=part["title"], text=part["text"])
        case "tool_reference":
            return ToolReference(part["name"])
        case other:
            raise AssertionError(f"a part of the kind {other} is not known")
