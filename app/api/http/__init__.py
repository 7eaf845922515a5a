"""HTTP below the routes: protocol, request bodies, problem+json, SSE, ranges."""
