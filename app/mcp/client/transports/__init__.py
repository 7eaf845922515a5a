"""Transports to MCP servers: stdio, streamable HTTP, legacy SSE. `app/mcp/client/connection.py` uses them."""
