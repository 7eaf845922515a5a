"""Floor 2, the line: what happens to every call. May import: core, store.

Nothing else in the house runs a tool. Durable before visible: a change is
committed first and told then. No HTTP here, no SQL, no file is opened.
"""
