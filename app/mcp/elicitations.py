"""Elicitations: a server wants to know something of a person, by a form or on a page of its own."""

from urllib.parse import urlsplit

from app.core.asks import Answer
from app.core.jsons import Raw, dumps
from app.core.ports import Scope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.mcp.ports import ServerSaid
from app.mcp.visits import Visit, Visits

ELICITATION = "mcp_elicitation"
INVALID_PARAMS = -32602
MOST_BYTES = 64 * 1024
LONGEST_WAIT = 604_800.0


def make(visits: Visits) -> Tool:
    """The hidden tool for questions that belong to no call: one that does nothing but ask them."""

    def needs(args: Visit, scope: Scope) -> list[Need]:
        return [Need("mcp", f"{args.server}/elicitation:{args.params['mode']}")]

    async def run(args: Visit, ctx: Context) -> Result:
        visits.admit(args)
        said = to_result(await ctx.elicit(args.params), args.params)
        return Result(said["action"], f"{args.server} asks", structured=said)

    return typed(
        Visit,
        name=ELICITATION,
        description="Puts a question of an MCP server to a person.",
        effect=Effect.READ,
        needs=needs,
        run=run,
        lane=Lane.NONE,
        timeout=LONGEST_WAIT,
        permission="mcp",
        is_listed=False,
    )


def shown(server: str, params: Raw) -> Raw:
    """What a person gets to see. Raises `ServerSaid` for what cannot be asked."""
    shows = {"server": server, "mode": params.get("mode", "form"), "message": str(params.get("message", ""))}
    match params:
        case {"mode": "url", "url": str(url)}:
            shows |= {"url": _checked(url), "elicitation_id": params.get("elicitationId")}
        case {"requestedSchema": dict(schema)} if shows["mode"] == "form":
            shows["requested_schema"] = schema
        case _:
            raise ServerSaid(INVALID_PARAMS, "an elicitation has a requestedSchema, or the mode url and a url")
    if len(dumps(shows)) > MOST_BYTES:
        raise ServerSaid(INVALID_PARAMS, f"an elicitation takes at most {MOST_BYTES // 1024} KiB")
    return shows


def to_result(answer: Answer, shows: Raw) -> Raw:
    """What the person said, as the server takes it."""
    if answer.action is not None or answer.content is None:
        return {"action": answer.action or "cancel"}
    return {"action": "accept"} if shows["mode"] == "url" else {"action": "accept", "content": answer.content}


def _checked(url: str) -> str:
    """Nobody opens it for the person; it has to be one that a browser opens as a page."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise ServerSaid(INVALID_PARAMS, "the url of an elicitation has to be an http or https one")
    return url
