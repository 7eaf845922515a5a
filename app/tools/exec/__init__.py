"""Built-in tools that run commands and code."""
