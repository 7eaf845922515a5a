"""Toolcrib: the locked room where an agent's tools are kept, handed out, logged and taken back."""

__version__ = "0.1.0"
