"""Floor 3, the interpreters: one file is one provider's dialect, pure functions from dict to dict. May import: core."""
