"""An MCP server without any library that has a little of everything: tools, resources on two pages, templates, prompts.

Arguments: `refuse` ends before hello, `slow` never says it. What stands in `SHOP_GREETING` goes to stderr first, and
what stands in `SHOP_TOKEN` from back to front, so that it is not known for what it is.
"""

import json
import os
import sys
import time
from typing import Any

TOOLS = [
    {
        "name": "echo",
        "description": "Say it again.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "buy", "description": "Buy something.", "inputSchema": {"type": "object"}},
    {"name": "broken", "description": "Has no such schema.", "inputSchema": "any"},
]
PAGES: dict[str | None, dict[str, Any]] = {
    None: {"resources": [{"uri": "shop://apples", "name": "apples"}], "nextCursor": "two"},
    "two": {"resources": [{"uri": "shop://logo", "name": "logo", "mimeType": "image/png"}]},
}
CONTENTS: dict[str, dict[str, Any]] = {
    "shop://apples": {"uri": "shop://apples", "mimeType": "text/plain", "text": "apples " * 20_000},
    "shop://logo": {"uri": "shop://logo", "mimeType": "image/png", "blob": "iVBORw0KGgo="},
}
PROMPT = {"name": "offer", "arguments": [{"name": "fruit", "required": True}]}


class No(Exception):
    pass


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "serverInfo": {"name": "shop", "version": "1.0"},
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
                "instructions": "Buy nothing.",
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return {"content": [{"type": "text", "text": json.dumps(params["arguments"])}]}
        case "resources/list":
            return PAGES[params.get("cursor")]
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "shop://{fruit}", "name": "fruit"}]}
        case "resources/read" if params["uri"] in CONTENTS:
            return {"contents": [CONTENTS[params["uri"]]]}
        case "prompts/list":
            return {"prompts": [PROMPT]}
        case "prompts/get" if params["name"] == PROMPT["name"]:
            text = f"Sell me {params['arguments']['fruit']}."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
        case "ping":
            return {}
    raise No(f"no {method}")


def main() -> None:
    sys.stderr.write(os.environ.get("SHOP_GREETING", "") + os.environ.get("SHOP_TOKEN", "")[::-1] + "\n")
    sys.stderr.flush()
    if "refuse" in sys.argv:
        sys.exit("the shop is closed")
    if "slow" in sys.argv:
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message["method"], message.get("params") or {})
        except No as no:
            reply["error"] = {"code": -32601, "message": str(no)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
