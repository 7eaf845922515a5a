"""Floor 1, the walls: the only place that starts processes and opens workspace files. May import: core.

Never happens here: a path checked first and opened later by name, a symlink
followed out of a workspace, a decision about who may do what, a word of SQL
or HTTP.
"""
