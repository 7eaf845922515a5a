"""The `toolcrib` command: one file per command. May import: everything."""
