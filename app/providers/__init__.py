"""Layer 3: provider dialects, one file or sub-package each; pure functions from dict to dict. May import: core.

To add a dialect, write `app/providers/<name>.py` that ends in a `dialect`, and add its line to `registry.py`. A
provider that speaks another provider's dialect is an entry in `provider_aliases.py`.
"""
