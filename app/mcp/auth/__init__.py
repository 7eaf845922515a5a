"""Signing in at MCP servers with OAuth, piece by piece. `app/mcp/oauth.py` puts them together."""
