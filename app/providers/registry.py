"""All dialects, and who speaks them in a way of their own. A dialect is loaded when it is first spoken."""

from dataclasses import replace
from functools import cache
from importlib import import_module

from app.providers.dialects import Dialect
from app.providers.provider_aliases import ALIASES

AUTO = "auto"
DIALECTS = {
    "openai-chat": ("openai_chat", "dialect"),
    "openai-responses": ("responses.dialect", "dialect"),
    "anthropic": ("anthropic", "dialect"),
    "gemini": ("gemini.dialect", "dialect"),
    "gemini-openapi": ("gemini.dialect", "openapi_dialect"),
    "gemini-interactions": ("gemini.interactions", "dialect"),
    "bedrock": ("bedrock", "dialect"),
    "mistral": ("mistral", "dialect"),
    "ollama": ("ollama", "dialect"),
    "cohere": ("cohere", "dialect"),
    "text": ("text_calls.json_dialect", "dialect"),
    "text-xml": ("text_calls.xml_dialect", "dialect"),
    "mcp": ("mcp", "dialect"),
}
"""By its name, the file and the value in it."""
NAMES = (*DIALECTS, *ALIASES)


@cache
def find(name: str) -> Dialect | None:
    """A dialect by its name, or by the name of who speaks it."""
    if (place := DIALECTS.get(name)) is not None:
        file, value = place
        dialect: Dialect = getattr(import_module(f"app.providers.{file}"), value)
        return dialect
    alias = ALIASES.get(name)
    spoken = find(alias.dialect) if alias is not None else None
    if alias is None or spoken is None:
        return None
    return replace(spoken, name=name, title=alias.title, quirks=alias.quirks, supports=alias.supports)
