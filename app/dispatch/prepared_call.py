"""Steps: a call that has found its tool and its arguments, on its way to the gate."""

from dataclasses import dataclass
from typing import Any

from app.core.calls import CallRequest
from app.core.errors import InvalidArgs
from app.core.ports import Workspace
from app.core.rules import Need
from app.core.tools import Tool
from app.dispatch.gate import GateHold

ON_FILES = ("read", "edit")
AS_INPUT = {"input", "patch", "patchText"}
"""What models that know no free text call the one argument they send instead; the last two are a patch's."""


@dataclass(slots=True)
class PreparedCall:
    """What a call runs, with what, what it needs for that, and what a person answered to the tool's questions."""

    tool: Tool
    payload: Any
    args: Any
    needs: list[Need]
    workspace: Workspace
    held: GateHold | None = None
    answer: dict[str, Any] | None = None

    def find_needs(self) -> list[Need]:
        """Found anew each time: a link may point elsewhere by now. A tool that needs nothing else needs itself."""
        self.needs = self.tool.needs(self.args, self.workspace)
        return self.needs or [Need(self.tool.name, "*")]

    @property
    def extra(self) -> dict[str, Any]:
        """What the tool is told besides: a person's answer."""
        return {} if self.answer is None else {"answer": self.answer}

    @property
    def approved(self) -> frozenset[str] | None:
        """The names of the files and folders that were approved; None when none was named."""
        names = frozenset(need.pattern for need in self.needs if need.permission in ON_FILES)
        return names or None


def payload_of(request: CallRequest, tool: Tool) -> Any:
    """What the tool takes. The other kind of payload is the caller's mistake, and is said."""
    arguments, input = request.arguments, request.input
    if tool.takes == "input" and input is None and arguments and len(arguments) == 1 and arguments.keys() <= AS_INPUT:
        [input], arguments = arguments.values(), None
    given, other = (arguments, input) if tool.takes == "arguments" else (input, arguments)
    if other is not None:
        wrong = "input" if tool.takes == "arguments" else "arguments"
        raise InvalidArgs(f"{tool.name} takes `{tool.takes}`, not `{wrong}`; send what it needs in `{tool.takes}`.")
    if tool.takes == "arguments":
        return {} if given is None else given
    if not isinstance(given, str):
        raise InvalidArgs(f"{tool.name} takes its text in `input`, which is missing or no text.")
    return given
