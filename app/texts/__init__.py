"""Floor 1, pure text engines: patches, replacers, search, ranking. May import: core.

Text in, text out; nothing here touches a file or a socket.
"""
