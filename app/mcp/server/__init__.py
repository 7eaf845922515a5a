"""Toolcrib as an MCP server, behind `/mcp`: one part of the protocol per module, put together in `app.py`."""
