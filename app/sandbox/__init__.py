"""Layer 1: the only package that starts processes and opens workspace files. May import: core.

Never happens here: a path checked first and opened later by name, a symlink followed out of a workspace, a decision
about permissions, SQL or HTTP.
"""
