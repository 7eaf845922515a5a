"""Floor 2, what comes from outside: files, HTTP, OpenAPI and client-run tools become `Tool` values, hooks `Hook`.

May import: core.
"""
