"""Floor 1, the wire out: outgoing HTTP. May import: core.

Only this room (and the MCP transports) opens outgoing connections.
"""
