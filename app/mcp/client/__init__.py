"""Toolcrib as an MCP client: connections to MCP servers and their tools."""
