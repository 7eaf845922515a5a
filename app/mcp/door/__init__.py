"""What stands behind `/mcp`: one part of the protocol each. `app/mcp/server.py` puts them together."""
