"""Tools that the tests of text know."""

from typing import Any

from app.core.runs import Known, ToolOffer
from tests.providers.neutral import WEATHER, knowing


def offer(name: str, **properties: dict[str, Any]) -> ToolOffer:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return ToolOffer(name=name, description=f"What {name} does.", schema=schema)


STRING = {"type": "string"}
WEATHER_OFFER = ToolOffer(name="get_weather", description="Current weather for a place.", schema=WEATHER)
READ = offer("read_file", path=STRING, limit={"type": ["integer", "null"]})
WRITE = offer("write_file", path=STRING, content=STRING)
SEARCH = offer(
    "search",
    query=STRING,
    limit={"type": "integer"},
    is_exact={"type": "boolean"},
    tags={"type": "array", "items": STRING},
    within={"type": "object"},
)
PATCH = ToolOffer(
    name="apply_patch",
    description="Edit files.",
    schema={"type": "object", "properties": {"input": STRING}, "required": ["input"]},
    takes="input",
    grammar='start: "*** Begin Patch" LF',
)
LIST = offer("list_sessions")
OFFERS = (WEATHER_OFFER, READ, WRITE, SEARCH, PATCH, LIST)
KNOWN: Known = knowing(*OFFERS)
