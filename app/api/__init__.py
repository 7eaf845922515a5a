"""Layer 4: HTTP in, HTTP out. May import: core, store, dispatch, mcp, providers, runs.

A route reads a request, calls a lower layer and writes the response; it decides nothing. What the model got wrong is a
call that ends in `error`; only the frontend's own mistakes are HTTP errors, as problem+json.
"""
