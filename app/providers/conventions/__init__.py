"""The conventions by which models write calls in plain text, one file each, in the order in which they are believed.

The first one that finds a call of a tool that there is counts for the whole text. May import: core.
"""

from app.providers.conventions import chatcli, hermes, invokes, llama, mistral, pythonic, qwen

CONVENTIONS = (
    hermes.convention,
    invokes.convention,
    qwen.convention,
    chatcli.convention,
    chatcli.last_resort,
    mistral.convention,
    llama.convention,
    pythonic.convention,
)
