"""Shell tools as the operator wants them: which ones models are offered, and how long a command may be silent."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from app.config import Settings
from app.core.models import SHELL_TOOLS, ShellChoice, offers_shell
from app.core.results import Result
from app.core.tools import Audience, Context, Ready, Tool

DISABLED = "The operator has switched off the tools that run commands."


def fitted(tools: Iterable[Tool], settings: Settings) -> list[Tool]:
    """The same tools. A shell tool that a model is not offered can still be called by its name, unless none may be."""
    return [_fitted(tool, settings) if tool.name in SHELL_TOOLS else tool for tool in tools]


def _fitted(tool: Tool, settings: Settings) -> Tool:
    tool = replace(tool, suits=partial(_suits, settings.shell, tool.name))
    if settings.shell == "disabled":
        return replace(tool, init=_refuse)
    return replace(tool, run=partial(_run, tool, settings.silence_timeout)) if settings.silence_timeout else tool


def _suits(choice: ShellChoice, name: str, audience: Audience) -> bool:
    return offers_shell(choice, audience.model, name)


async def _refuse(audience: Audience) -> Ready:
    return Ready(reason=DISABLED)


async def _run(tool: Tool, silence: float, args: Any, ctx: Context) -> Result:
    ctx.extra["silence"] = silence
    return await tool.run(args, ctx)
