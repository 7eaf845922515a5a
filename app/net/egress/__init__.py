"""The egress proxy: the only way out of a sandbox with a network policy."""
