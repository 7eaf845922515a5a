"""The formats in which models write calls in plain text, in the order of precedence.

The first format that finds a call of a known tool counts for the whole text.
"""

from app.providers.text_calls.formats import chatcli, hermes, llama, mistral, pythonic, xml_params

FORMATS = (
    hermes.call_format,
    xml_params.claude,
    xml_params.qwen,
    chatcli.call_format,
    chatcli.bracket_format,
    mistral.call_format,
    llama.call_format,
    pythonic.call_format,
)
