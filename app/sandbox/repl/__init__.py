"""REPL kernels: programs of the service that run in the sandbox, without imports from the rest of it."""
