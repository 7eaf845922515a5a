"""Floor 1, pure engines: patches, replacers, search, ranking, images. May import: core.

Text in, text out, or bytes; nothing here opens a file or a socket.
"""
