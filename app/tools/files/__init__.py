"""Built-in tools on workspace files."""
