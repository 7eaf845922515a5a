"""A call that has its tool, its arguments and its needs, before it runs."""

from dataclasses import dataclass
from typing import Any

from app.core.calls import CallRequest
from app.core.errors import InvalidArgs
from app.core.ports import Workspace
from app.core.rules import Need
from app.core.tools import Effect, Tool
from app.dispatch.gate import GateHold

FILE_PERMISSIONS = ("read", "edit")
INPUT_NAMES = {"input", "patch", "patchText"}
"""Argument names under which models without free-form input send the text; the last two are used for patches."""


@dataclass(slots=True)
class PreparedCall:
    tool: Tool
    payload: Any
    args: Any
    needs: list[Need]
    workspace: Workspace
    effect: Effect
    #: The gate's lane; None when the call waits for no other.
    lane: str | None
    hold: GateHold | None = None
    #: What a person answered to the tool's questions.
    answer: dict[str, Any] | None = None

    def find_needs(self) -> list[Need]:
        """Resolved again each time, because a symlink may have changed. A tool without needs needs itself."""
        self.needs = self.tool.needs(self.args, self.workspace)
        return self.needs or [Need(self.tool.name, "*")]


def payload_of(request: CallRequest, tool: Tool) -> Any:
    """What the tool takes, `arguments` or `input`; raises `InvalidArgs` when the request has the other one."""
    arguments, input = request.arguments, request.input
    if tool.takes == "arguments":
        if input is not None:
            raise InvalidArgs(f"{tool.name} takes `arguments`, not `input`; send what it needs in `arguments`.")
        return {} if arguments is None else arguments
    if input is None and arguments and len(arguments) == 1 and arguments.keys() <= INPUT_NAMES:
        [input], arguments = arguments.values(), None
    if arguments is not None:
        raise InvalidArgs(f"{tool.name} takes `input`, not `arguments`; send what it needs in `input`.")
    if not isinstance(input, str):
        raise InvalidArgs(f"{tool.name} takes its text in `input`, which is missing or no text.")
    return input
