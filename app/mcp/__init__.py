"""Floor 3, the neighbours: MCP servers as tools, and Toolcrib as one. May import: core, store, dispatch."""
