"""All dialects, and who speaks them in a way of their own."""

from dataclasses import replace

from app.providers import (
    anthropic,
    bedrock,
    cohere,
    gemini,
    mcp,
    mistral,
    ollama,
    openai_chat,
    openai_responses,
    text,
    text_xml,
)
from app.providers.dialects import Dialect
from app.providers.quirks import ALIASES

DIALECTS: dict[str, Dialect] = {
    one.name: one
    for one in (
        openai_chat.dialect,
        openai_responses.dialect,
        anthropic.dialect,
        gemini.dialect,
        gemini.openapi_dialect,
        bedrock.dialect,
        mistral.dialect,
        ollama.dialect,
        cohere.dialect,
        text.dialect,
        text_xml.dialect,
        mcp.dialect,
    )
}
AUTO = "auto"


def find(name: str) -> Dialect | None:
    """A dialect by its name, or by the name of who speaks it."""
    if (dialect := DIALECTS.get(name)) is not None:
        return dialect
    alias = ALIASES.get(name)
    if alias is None:
        return None
    spoken = DIALECTS[alias.dialect]
    return replace(spoken, name=name, title=alias.title, quirks=alias.quirks, supports=alias.supports)


def names() -> list[str]:
    return [*DIALECTS, *ALIASES]
