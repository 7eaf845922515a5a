"""Signing in at MCP servers with OAuth, piece by piece. `app/mcp/client/oauth/manager.py` puts them together."""
