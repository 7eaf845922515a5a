"""The conventions by which models write calls in plain text, one file each, in the order in which they are believed.

The first one that finds a call of a tool that there is counts for the whole text. May import: core.
"""

from app.providers.text_calls.formats import chatcli, claude_invoke, hermes, llama, mistral, pythonic, qwen

CONVENTIONS = (
    hermes.convention,
    claude_invoke.convention,
    qwen.convention,
    chatcli.convention,
    chatcli.last_resort,
    mistral.convention,
    llama.convention,
    pythonic.convention,
)
