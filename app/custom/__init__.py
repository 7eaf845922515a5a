"""Layer 2: tools and hooks from outside: Python files, HTTP, OpenAPI, client-run. May import: core."""
