"""Floor 1, the wire out: outgoing HTTP. May import: core.

Only this room (and the MCP transports) opens outgoing connections: those of
tools (`outbound`), and those of processes behind walls (`egress`), which go
through a proxy of ours.
"""
