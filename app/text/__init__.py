"""Layer 1: pure engines: edits, patches, bash, search output, ranking, images. May import: core.

Text or bytes in, text or bytes out; nothing here opens a file or a socket.
"""
