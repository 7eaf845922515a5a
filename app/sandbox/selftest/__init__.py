"""The self-test of the sandbox: probes that try to get out of each backend."""
