"""Layer 0: types, pure rules and the ports (Protocols). May import: nothing of app.

Everything here can be built and tested without a database, a file or a socket. No I/O ever happens here.
"""
