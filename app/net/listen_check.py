"""Ports: whether a service could listen on one."""

import errno
import socket


def refusal(host: str, port: int) -> OSError | None:
    """What would keep a service from listening there now, found without listening."""
    try:
        [(family, kind, proto, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, proto) as door:
            # As the service does; two that share an address this way do not keep each other from listening.
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(address)
    except OSError as error:
        return error
    return None


def is_taken(error: OSError) -> bool:
    return error.errno == errno.EADDRINUSE
