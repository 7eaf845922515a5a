"""All dialects by name, and the providers that use another provider's dialect. Dialects are imported at first use."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from app.core.runs import Media, Part, Reply, Text
from app.providers.dialects import UNIVERSAL, Dialect, NameRule, Quirks, Supports
from app.providers.reply_content import media_of, placeholder

AT_LEAST_THREE = NameRule(re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{2,63}"))
EVERY_REQUEST = "The tools have to be in every request, also in the one that carries results."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAlias:
    """A provider by its own name: whose dialect it speaks, and how."""

    dialect: str
    title: str
    quirks: Quirks
    supports: Supports


ALIASES: dict[str, ProviderAlias] = {
    "openrouter": ProviderAlias(
        dialect="openai-chat",
        title="OpenRouter",
        quirks=Quirks(strict="on_request", names=UNIVERSAL, most_tools=128, longest_description=1024),
        supports=Supports(
            strict=True,
            images=True,
            files=True,
            note=f"{EVERY_REQUEST} Limits are those of the model behind it, so the narrowest are kept.",
        ),
    ),
    "moonshot": ProviderAlias(
        dialect="openai-chat",
        title="Moonshot (Kimi)",
        quirks=Quirks(
            strict="false", names=AT_LEAST_THREE, most_tools=128, modes=frozenset({"auto", "none", "required"})
        ),
        supports=Supports(
            strict=True,
            images=True,
            note="Tools are strict unless they say they are not. Older models refuse the choice `required`, and models "
            "without vision refuse pictures.",
        ),
    ),
    "minimax": ProviderAlias(
        dialect="openai-chat",
        title="MiniMax",
        quirks=Quirks(modes=frozenset(), says_parallel=False),
        supports=Supports(note="Thinking stands in the text unless the request says `reasoning_split`."),
    ),
    "minimax-anthropic": ProviderAlias(
        dialect="anthropic",
        title="MiniMax (Anthropic's shape)",
        quirks=Quirks(),
        supports=Supports(note="Send back the whole content of the message, thinking included."),
    ),
    "zai": ProviderAlias(
        dialect="openai-chat",
        title="Z.AI (GLM)",
        quirks=Quirks(modes=frozenset({"auto"}), says_parallel=False),
        supports=Supports(images=True, note="Arguments are streamed only with `tool_stream: true`."),
    ),
    "xai": ProviderAlias(
        dialect="openai-chat",
        title="xAI (Grok)",
        quirks=Quirks(closes=False),
        supports=Supports(images=True),
    ),
    "copilot": ProviderAlias(
        dialect="openai-chat",
        title="GitHub Copilot",
        quirks=Quirks(strict="on_request", most_tools=128, longest_description=1024),
        supports=Supports(strict=True, images=True, note="One turn may be split over several choices: send them all."),
    ),
    "github-models": ProviderAlias(
        dialect="openai-chat",
        title="GitHub Models",
        quirks=Quirks(strict="on_request", most_tools=128, longest_description=1024),
        supports=Supports(strict=True, images=True),
    ),
    "deepseek": ProviderAlias(dialect="openai-chat", title="DeepSeek", quirks=Quirks(), supports=Supports()),
    "vllm": ProviderAlias(
        dialect="openai-chat",
        title="vLLM",
        quirks=Quirks(),
        supports=Supports(images=True, note="The server needs a tool parser for its model. Pictures need vision."),
    ),
    "groq": ProviderAlias(
        dialect="openai-chat",
        title="Groq",
        quirks=Quirks(),
        supports=Supports(images=True, note="Only models with vision take pictures."),
    ),
    "stackspot": ProviderAlias(
        dialect="text",
        title="StackSpot",
        quirks=Quirks(modes=frozenset(), says_parallel=False),
        supports=Supports(
            native_tools=False, streams=False, note="There is no field for tools: they are told of in the prompt."
        ),
    ),
}


def without_unseen(replies: Iterable[Reply], supports: Supports) -> list[Reply]:
    """The replies as a provider can take them: a placeholder stands for what it would refuse."""
    return [
        replace(reply, parts=tuple(_seen(part, supports) for part in reply.parts)) if media_of(reply) else reply
        for reply in replies
    ]


def _seen(part: Part, supports: Supports) -> Part:
    if not isinstance(part, Media) or (supports.images if part.is_image else supports.files):
        return part
    return Text(placeholder(part))


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
    "text": ("text_calls.dialect", "json_dialect"),
    "text-xml": ("text_calls.dialect", "xml_dialect"),
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
