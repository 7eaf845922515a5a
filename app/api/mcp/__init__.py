"""Routes for MCP servers and the /mcp endpoint."""
