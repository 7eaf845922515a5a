"""Permissions: rules applied to what a call needs. What would have to be asked is denied while nobody can answer."""

from collections.abc import Iterable, Sequence

from app.core.errors import PermissionDenied
from app.core.principals import Key
from app.core.rules import DEFAULTS, Action, Layer, Need, Rule, Verdict, hides, judge
from app.core.sessions import Session
from app.core.tools import Tool


class Permissions:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self._layers = (DEFAULTS, Layer("configuration", tuple(rules)))

    def judge(self, needs: Iterable[Need]) -> Verdict:
        return judge(needs, self._layers)

    def hides(self, tool: Tool, session: Session, key: Key | None) -> bool:
        """Whether a tool is denied whatever it is used for."""
        return hides(self._layers, tool.permission or tool.name, tool.name)

    async def require(self, needs: Iterable[Need]) -> None:
        """Come back only when everything is allowed."""
        verdict = self.judge(needs)
        if verdict.action is not Action.ALLOW:
            raise denied(verdict)


def denied(verdict: Verdict) -> PermissionDenied:
    """The sentence for the model, naming the rule that decided."""
    need = verdict.need
    assert need is not None, "only a need can be denied"
    wish = f"{need.permission} {need.pattern}"
    details = {"permission": need.permission, "pattern": need.pattern, "rule": verdict.rule and str(verdict.rule)}
    if verdict.action is Action.DENY:
        return PermissionDenied(f"Not allowed: {wish} is denied by the rule `{verdict.rule}`.", details=details)
    by = f"the rule `{verdict.rule}`" if verdict.rule else "no rule, and what no rule covers must be asked"
    return PermissionDenied(
        f"Not allowed: {wish} needs a person's approval ({by}), and nobody can be asked here.", details=details
    )
