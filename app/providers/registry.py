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
    """A provider that uses another provider's dialect.

    Names, limits and choices are those that the provider documents; without documentation, those common to all.
    """

    dialect: str
    title: str
    quirks: Quirks
    supports: Supports


ALIASES: dict[str, ProviderAlias] = {
    "openrouter": ProviderAlias(
        dialect="openai-chat",
        title="OpenRouter",
        quirks=Quirks(strict="on_request", names=UNIVERSAL, max_tools=128, max_description=1024),
        supports=Supports(
            strict=True,
            images=True,
            files=True,
            note=f"{EVERY_REQUEST} Limits depend on the model, so the narrowest are used.",
        ),
    ),
    "moonshot": ProviderAlias(
        dialect="openai-chat",
        title="Moonshot (Kimi)",
        quirks=Quirks(
            strict="false", names=AT_LEAST_THREE, max_tools=128, modes=frozenset({"auto", "none", "required"})
        ),
        supports=Supports(
            strict=True,
            images=True,
            note="Tools are strict by default. Older models reject the choice `required`, and models "
            "without vision reject images.",
        ),
    ),
    "minimax": ProviderAlias(
        dialect="openai-chat",
        title="MiniMax",
        quirks=Quirks(modes=frozenset(), has_parallel_choice=False),
        supports=Supports(note="Thinking is in the text unless the request has `reasoning_split`."),
    ),
    "minimax-anthropic": ProviderAlias(
        dialect="anthropic",
        title="MiniMax (Anthropic format)",
        quirks=Quirks(),
        supports=Supports(note="Send back the whole content of the message, thinking included."),
    ),
    "zai": ProviderAlias(
        dialect="openai-chat",
        title="Z.AI (GLM)",
        quirks=Quirks(modes=frozenset({"auto"}), has_parallel_choice=False),
        supports=Supports(images=True, note="Arguments are streamed only with `tool_stream: true`."),
    ),
    "xai": ProviderAlias(
        dialect="openai-chat",
        title="xAI (Grok)",
        quirks=Quirks(allows_closed=False),
        supports=Supports(images=True),
    ),
    "copilot": ProviderAlias(
        dialect="openai-chat",
        title="GitHub Copilot",
        quirks=Quirks(strict="on_request", max_tools=128, max_description=1024),
        supports=Supports(strict=True, images=True, note="One turn may be split over several choices: send them all."),
    ),
    "github-models": ProviderAlias(
        dialect="openai-chat",
        title="GitHub Models",
        quirks=Quirks(strict="on_request", max_tools=128, max_description=1024),
        supports=Supports(strict=True, images=True),
    ),
    "deepseek": ProviderAlias(dialect="openai-chat", title="DeepSeek", quirks=Quirks(), supports=Supports()),
    "vllm": ProviderAlias(
        dialect="openai-chat",
        title="vLLM",
        quirks=Quirks(),
        supports=Supports(
            images=True, note="The server needs a tool parser for its model. Images need a vision model."
        ),
    ),
    "groq": ProviderAlias(
        dialect="openai-chat",
        title="Groq",
        quirks=Quirks(),
        supports=Supports(images=True, note="Only vision models accept images."),
    ),
    "stackspot": ProviderAlias(
        dialect="text",
        title="StackSpot",
        quirks=Quirks(modes=frozenset(), has_parallel_choice=False),
        supports=Supports(
            native_tools=False, streams=False, note="There is no field for tools: they are listed in the prompt."
        ),
    ),
}


def replace_unsupported_media(replies: Iterable[Reply], supports: Supports) -> list[Reply]:
    """The replies with a placeholder for each image or file that the provider does not support."""
    return [
        replace(reply, parts=tuple(_supported(part, supports) for part in reply.parts)) if media_of(reply) else reply
        for reply in replies
    ]


def _supported(part: Part, supports: Supports) -> Part:
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
"""By name, the module and the variable."""
NAMES = (*DIALECTS, *ALIASES)


@cache
def find(name: str) -> Dialect | None:
    """A dialect by its own name or a provider's."""
    if name in DIALECTS:
        module, variable = DIALECTS[name]
        dialect: Dialect = getattr(import_module(f"app.providers.{module}"), variable)
        return dialect
    alias = ALIASES.get(name)
    base = find(alias.dialect) if alias is not None else None
    if alias is None or base is None:
        return None
    return replace(base, name=name, title=alias.title, quirks=alias.quirks, supports=alias.supports)
