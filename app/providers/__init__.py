"""Floor 3, the interpreters: one file is one provider's dialect, pure functions from dict to dict. May import: core.

To add a dialect, write `app/providers/<name>.py` that ends in a `dialect`, with siblings for what is too much for one
file, and add its line to `table.py`. A provider that speaks somebody else's dialect is an entry in `quirks.py`.
"""
