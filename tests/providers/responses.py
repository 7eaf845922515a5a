"""What tests of the Responses dialect have in common."""

from typing import Any

from openai.types.responses import ResponseInputItemParam, ToolParam

from app.core.runs import Failure, ModelCall, ParsedMessage, Reply, ToolOffer
from app.providers.dialects import Exported, ExportOptions, Wire
from app.providers.responses.dialect import dialect
from tests.providers.neutral import WEATHER, knowing
from tests.providers.typed_dicts import require

PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b\n"}
ACTION = {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": 4096}
EXEC = {"type": "exec", "command": ["ls"], "env": {"A": "b"}, "working_directory": "/w"}
CLICK = {"type": "click", "x": 1, "y": 2, "button": "left"}
CHECK = {"id": "sc", "code": "malicious", "message": "Sure?"}
PROGRAM = {"type": "program", "caller_id": "p"}

weather = ToolOffer(name="get_weather", description="Current weather for a place.", schema=WEATHER)
sessions = ToolOffer(name="list_sessions", description="List.", schema={"type": "object", "properties": {}})
patching = ToolOffer(
    name="apply_patch",
    description="Change files by a patch.",
    schema={"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    takes="input",
    grammar="start: /.+/",
)
note = ToolOffer(name="note", description="Keep a note.", schema={"type": "object"}, takes="input")
line = ToolOffer(name="shell_command", description="Run a line.", schema={"type": "object", "properties": {}})
words = ToolOffer(name="shell", description="Run words.", schema={"type": "object", "properties": {}})
nobody = knowing()


def exported(*offers: ToolOffer, **options: Any) -> Exported:
    asked: dict[str, Any] = {"quirks": dialect.quirks, "strict": "off"} | options
    made = dialect.export_tools(offers, ExportOptions(**asked))
    for tool in made.tools:
        require(ToolParam, tool)
    return made


def read(*items: Any) -> ParsedMessage:
    return dialect.read_calls(list(items), nobody)


def called(item: Wire) -> ModelCall:
    [call] = read(item).calls
    return call


def written(*replies: Reply) -> list[Wire]:
    items = dialect.write_results(replies)
    for item in items:
        require(ResponseInputItemParam, item)
    return items


def answer(call: ModelCall, *parts: Any, error: tuple[str, str] | None = None, **more: Any) -> Wire:
    [item] = written(Reply(call=call, parts=parts, error=Failure(*error) if error else None, **more))
    return item


def function(id: str | None = "call_1", **more: Any) -> ModelCall:
    return ModelCall(id=id, name="get_weather", arguments={}, **more)
