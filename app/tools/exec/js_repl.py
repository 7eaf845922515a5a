"""js_repl: run JavaScript in the session's Node interpreter, where what is defined stays."""

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

SECONDS = 30.0
MOST_SECONDS = 300.0
MARGIN = 20.0
"""Seconds that starting and ending an interpreter may take besides."""
PRAGMA = re.compile(r"\s*//\s*(?:codex-js-repl|toolcrib):(?P<said>[^\r\n]*)")
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
"""What no JavaScript begins with is refused: a fence, an object with a quoted key; and a text that is one string. There
is no looking ahead in it, which decoders that follow a grammar do not know."""


class Args(BaseModel, extra="forbid"):
    input: str = Field(description="JavaScript source text, as it is: no JSON, no quotes around it, no code fences.")
    _seconds: float = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, raw: Any) -> Any:
        return {"input": raw} if isinstance(raw, str) else raw

    def model_post_init(self, context: Any, /) -> None:
        pragma = PRAGMA.match(self.input)
        self._seconds = SECONDS if pragma is None else _seconds(pragma["said"])
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
    timeout=MOST_SECONDS + MARGIN,
    is_sandboxed=True,
)


def _seconds(said: str) -> float:
    found = TIMEOUT.fullmatch(said)
    seconds = int(found[1]) / 1000 if found else 0
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidArgs(
            f"The first line can say `// toolcrib: timeout_ms=N` with N from 1 to {MOST_SECONDS * 1000:.0f}, "
            "and nothing else; leave it out for 30 seconds."
        )
    return seconds


def _require_code(text: str) -> None:
    """What models wrap around code by habit is told from code that only looks like it."""
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
