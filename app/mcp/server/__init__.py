"""What stands behind `/mcp`: one part of the protocol each. `app/mcp/server/app.py` puts them together."""
