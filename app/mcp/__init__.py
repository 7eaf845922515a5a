"""Layer 3: MCP servers as tools, and Toolcrib as an MCP server. May import: core, store, dispatch."""
