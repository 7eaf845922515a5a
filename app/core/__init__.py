"""Floor 0, the words: types, pure rules and the ports. May import: nothing of the house.

Everything here can be read, built and tested without a database, a file or a
socket. No I/O ever happens here.
"""
