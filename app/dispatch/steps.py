"""Steps: a call that has found its tool and its arguments, on its way to the gate."""

from dataclasses import dataclass
from typing import Any

from app.core.calls import CallRequest
from app.core.errors import InvalidArgs
from app.core.ports import Workspace
from app.core.rules import Need
from app.core.tools import Tool
from app.dispatch.gate import Pass


@dataclass(slots=True)
class Step:
    """What a call runs, with what, what it needs for that, and what a person answered to the tool's questions."""

    tool: Tool
    payload: Any
    args: Any
    needs: list[Need]
    workspace: Workspace
    held: Pass | None = None
    answer: dict[str, Any] | None = None

    def find_needs(self) -> list[Need]:
        """Found anew each time: a link may point elsewhere by now. A tool that needs nothing else needs itself."""
        self.needs = self.tool.needs(self.args, self.workspace)
        return self.needs or [Need(self.tool.name, "*")]

    @property
    def extra(self) -> dict[str, Any]:
        """What the tool is told besides: the one thing that was approved, and the answer."""
        extra: dict[str, Any] = {"approved": self.needs[0].pattern} if len(self.needs) == 1 else {}
        return extra if self.answer is None else extra | {"answer": self.answer}


def payload_of(request: CallRequest, tool: Tool) -> Any:
    """What the tool takes. The other kind of payload is the caller's mistake, and is said."""
    given, other = (
        (request.arguments, request.input) if tool.takes == "arguments" else (request.input, request.arguments)
    )
    if other is not None:
        wrong = "input" if tool.takes == "arguments" else "arguments"
        raise InvalidArgs(f"{tool.name} takes `{tool.takes}`, not `{wrong}`; send what it needs in `{tool.takes}`.")
    if given is None and tool.takes == "input":
        raise InvalidArgs(f"{tool.name} takes its text in `input`, which is missing.")
    return {} if given is None else given
