"""`python fastmcp_proxy.py PORT stdio COMMAND…` or `… PORT http URL`: FastMCP's proxy as its documentation makes it."""

import sys

import uvloop
from fastmcp.client.transports import StdioTransport  # type: ignore[import-not-found]
from fastmcp.server import create_proxy  # type: ignore[import-not-found]

port, kind, *target = sys.argv[1:]
proxy = create_proxy(target[0] if kind == "http" else StdioTransport(target[0], target[1:]), name="proxy")
serving = proxy.run_http_async(
    show_banner=False, host="127.0.0.1", port=int(port), log_level="ERROR", uvicorn_config={"access_log": False}
)
uvloop.run(serving)
