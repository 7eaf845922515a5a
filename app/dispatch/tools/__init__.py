"""The tool registry and what fills it."""
