"""Layer 2: the pipeline every call goes through. May import: core, store.

Nothing else in the service runs a tool. Durable before visible: a change is committed first and published then.
No HTTP here, no SQL, no file is opened.
"""
