"""Layer 1: outgoing HTTP, the checked resolver, the egress proxy, traces. May import: core.

Only this package and the MCP transports open outgoing connections: those of tools (`outbound`), and those of sandboxed
processes, which go through the egress proxy (`egress`).
"""
