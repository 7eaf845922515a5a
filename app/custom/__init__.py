"""Floor 2, tools from outside: files, HTTP, OpenAPI and client-run tools become `Tool` values. May import: core."""
