"""Every built-in tool, offered in every native dialect, is what the provider's own package takes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
from anthropic.types import ToolUnionParam
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from cohere.types import ToolV2
from google.genai.interactions import FunctionParam
from google.genai.types import Tool as GeminiTool
from mcp.types import Tool as McpTool
from mistralai.client.models import Tool as MistralTool
from ollama import Tool as OllamaTool
from openai.types.chat import ChatCompletionToolUnionParam
from openai.types.responses import ToolParam
from pydantic import ValidationError

from app.core.runs import ToolOffer
from app.providers.dialects import ExportOptions
from app.providers.registry import find
from app.providers.reply_content import offer_of
from app.tools import BUILTINS
from tests.providers.typed_dicts import require

OURS = [offer_of(tool.view()) for tool in BUILTINS if tool.is_listed]
MODELS = (None, "gpt-5.1", "claude-sonnet-4-5")


def check_converse(tool: dict[str, Any]) -> None:
    model = botocore.session.get_session().get_service_model("bedrock-runtime")
    report = ParamValidator().validate(tool, model.shape_for("Tool"))
    assert not report.has_errors(), report.generate_report()


CHECKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "openai-chat": lambda tool: require(ChatCompletionToolUnionParam, tool),
    "openai-responses": lambda tool: require(ToolParam, tool),
    "anthropic": lambda tool: require(ToolUnionParam, tool),
    "gemini": GeminiTool.model_validate,
    "gemini-openapi": GeminiTool.model_validate,
    "gemini-interactions": lambda tool: require(FunctionParam, tool),
    "bedrock": check_converse,
    "mistral": MistralTool.model_validate,
    "ollama": OllamaTool.model_validate,
    "cohere": ToolV2.model_validate,
    "mcp": McpTool.model_validate,
}


def test_all_our_definitions_are_taken(subtests: pytest.Subtests) -> None:
    wishs: list[dict[str, Any]] = [{"strict": "off"}, {"strict": "on"}, {"is_native": True}, {"cache": "ephemeral"}]
    for model in MODELS:
        for wish in wishs:
            for dialect in CHECKS:
                with subtests.test(model=model, wish=wish, dialect=dialect):
                    spoken = find(dialect)
                    assert spoken is not None

                    exported = spoken.export_tools(OURS, ExportOptions(model=model, quirks=spoken.quirks, **wish))

                    assert exported.tools
                    for tool in exported.tools:
                        CHECKS[dialect](tool)


@pytest.mark.parametrize("dialect", CHECKS)
def test_a_definition_with_a_key_nobody_knows_would_be_noticed(dialect: str) -> None:
    spoken = find(dialect)
    assert spoken is not None
    made = spoken.export_tools(OURS[:1], ExportOptions(strict="off", quirks=spoken.quirks)).tools[0]

    if dialect in ("mistral", "ollama", "cohere", "mcp"):  # whose types take more than they name
        with pytest.raises(ValidationError):
            CHECKS[dialect]({"function": 7, "name": 7})
        return
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[dialect](made | {"bogus": 1})


@pytest.mark.parametrize("model", ["gpt-5.1", "openai/gpt-5-codex"])
def test_free_text_is_a_tool_of_its_own_for_models_that_know_it(model: str) -> None:
    patch = next(offer for offer in OURS if offer.name == "apply_patch")
    chat, responses = (offered(name, patch, model) for name in ("openai-chat", "openai-responses"))

    assert chat["custom"]["format"]["grammar"] == {"syntax": "lark", "definition": patch.grammar}
    assert responses["format"] == {"type": "grammar", "syntax": "lark", "definition": patch.grammar}
    assert offered("openai-chat", patch, "gpt-4.1")["type"] == "function"
    assert offered("openai-responses", replace(patch, grammar=None), model)["format"] == {"type": "text"}


def offered(dialect: str, offer: ToolOffer, model: str) -> dict[str, Any]:
    spoken = find(dialect)
    assert spoken is not None
    [tool] = spoken.export_tools([offer], ExportOptions(model=model, quirks=spoken.quirks)).tools
    return tool
