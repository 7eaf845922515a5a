"""js_repl: run JavaScript in the session's Node interpreter, which keeps its definitions between calls."""

import json
import re
from typing import Any

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from app.core.errors import InvalidArgs
from app.core.ports import PathScope
from app.core.repl import Cell, run_cell
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, typed

DEFAULT_SECONDS = 30.0
MAX_SECONDS = 300.0
START_SECONDS = 20.0
"""Extra time for starting and ending an interpreter."""
PRAGMA = re.compile(r"\s*//\s*(?:codex-js-repl|toolcrib):(?P<settings>[^\r\n]*)")
TIMEOUT = re.compile(r"\s*timeout_ms\s*=\s*(\d+)\s*")
MORE_TIME = "`// toolcrib: timeout_ms=60000` as its first line gives a cell another time, at most 300000."
FENCE = "```"
DESCRIPTION = """\
Run JavaScript in a Node interpreter that this session keeps: what a cell declares at the top (const, let, class, \
function, import) is there in later ones and may be declared again. Send the plain source text, no JSON, no quotes \
around it, no code fences. `await` works at the top, and so do `import` statements and `require`, both from the \
workspace, which is the current folder. What console prints comes back, and the value of the last expression. \
`await tool(name, arguments)` runs another tool and gives its result `{output, metadata, structured, attachments}`; a \
tool that fails throws an error with `code` and `message`; several run side by side with Promise.all. \
`codex.emitImage(dataUrlOrBytes)` shows an image. A cell has 30 seconds of its own, or what a first line like \
`// toolcrib: timeout_ms=60000` says; one that takes longer is ended together with all that was defined."""
GRAMMAR = r"""
start: (PRAGMA LF)? CODE

PRAGMA: /[ \t]*\/\/[ \t]*(codex-js-repl|toolcrib):[^\r\n]*/
CODE: /\s*/ (ORDINARY | BLOCK | STRING | TEMPLATE) /[\s\S]*/
ORDINARY: /[^\s{"`]/
BLOCK: "{" /\s*/ (/[^\s"]/ | QUOTED /\s*[^\s:]/)
STRING: QUOTED /\s*[^\s]/
TEMPLATE: /``?[^`]/
QUOTED: /"([^"\\\r\n]|\\[^\r\n])*"/

%import common.LF
"""
"""Rejects what JavaScript cannot begin with: a code fence, an object with a quoted key, or one string alone. It uses no
lookahead, which grammar-constrained decoders do not support."""


class Args(BaseModel, extra="forbid"):
    input: str = Field(description="JavaScript source text, as it is: no JSON, no quotes around it, no code fences.")
    _seconds: float = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, raw: Any) -> Any:
        return {"input": raw} if isinstance(raw, str) else raw

    def model_post_init(self, context: Any, /) -> None:
        pragma = PRAGMA.match(self.input)
        self._seconds = DEFAULT_SECONDS if pragma is None else _seconds(pragma["settings"])
        _require_code(self.input if pragma is None else self.input[pragma.end() :])

    @property
    def seconds(self) -> float:
        return self._seconds


def needs(args: Args, scope: PathScope) -> list[Need]:
    return [Need("js_repl", "*")]


async def run(args: Args, ctx: Context) -> Result:
    return await run_cell(ctx, Cell(kind="js", code=args.input, seconds=args.seconds, more_time=MORE_TIME))


tool = typed(
    Args,
    name="js_repl",
    title="JavaScript",
    description=DESCRIPTION,
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    takes="input",
    grammar=GRAMMAR,
    lane=Lane.SESSION,
    timeout=MAX_SECONDS + START_SECONDS,
    is_sandboxed=True,
)


def _seconds(settings: str) -> float:
    found = TIMEOUT.fullmatch(settings)
    seconds = int(found[1]) / 1000 if found else 0
    if not 0 < seconds <= MAX_SECONDS:
        raise InvalidArgs(
            f"The first line can say `// toolcrib: timeout_ms=N` with N from 1 to {MAX_SECONDS * 1000:.0f}, "
            "and nothing else; leave it out for 30 seconds."
        )
    return seconds


def _require_code(text: str) -> None:
    """Reject code that is wrapped in a fence, in quotes or in JSON; code that only looks like it passes."""
    body = text.strip()
    if not body:
        raise InvalidArgs("js_repl got no code; send JavaScript source text.")
    if body.startswith(FENCE):
        raise InvalidArgs("js_repl takes JavaScript as it is; send it again without the ``` fences around it.")
    if body[0] not in '{"' or (wrapped := _json(body)) is None:
        return
    if isinstance(wrapped, str):
        raise InvalidArgs("js_repl takes JavaScript as it is; send it again without quotes around it.")
    if wrapped:
        raise InvalidArgs("js_repl takes JavaScript as it is, not JSON; send only the code itself.")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
