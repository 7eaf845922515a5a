"""How messages get to MCP servers and back: pipes, streamable HTTP, SSE. `app/mcp/links.py` puts them together."""
