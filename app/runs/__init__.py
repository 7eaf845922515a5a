"""Layer 3: runs, a model's message in and what to append out. May import: core, store, dispatch, providers.

`plan` reads a message and decides which calls carry it out, `submit` submits and stores them, `render` writes the
results in the dialect of the message. Nothing here knows HTTP.
"""
