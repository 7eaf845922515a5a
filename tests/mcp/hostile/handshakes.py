"""`python handshakes.py WAY`: servers with which no connection comes about, or hardly."""

import os
import sys
import time
from pathlib import Path

if (root := str(Path(__file__).resolve().parents[3])) not in sys.path:
    sys.path[0] = root  # instead of this folder

from tests.mcp.hostile.rpc import Raw, Server, variant

FOREVER = 86_400


def hangs(server: Server) -> None:
    """Reads everything and says nothing."""
    for _ in sys.stdin.buffer:
        pass


def deaf(server: Server) -> None:
    """Does not even read."""
    time.sleep(FOREVER)


def exits(server: Server) -> None:
    sys.stderr.write("no licence found\n")
    sys.exit(3)


def refuses(server: Server) -> None:
    def refuse(server: Server, request: Raw) -> None:
        server.refuse(request["id"], -32603, "not today")

    server.methods["initialize"] = refuse
    server.run()


def closes_output(server: Server) -> None:
    """Its process lives, its voice does not."""
    os.close(1)
    deaf(server)


def old_version(server: Server) -> None:
    server.version = "1999-01-01"
    server.run()


def new_version(server: Server) -> None:
    server.version = "2099-12-31"
    server.run()


def shapeless(server: Server) -> None:
    """Its hello is no object."""
    server.methods["initialize"] = lambda server, request: server.answer(request["id"], ["hello"])
    server.run()


def odd(server: Server) -> None:
    """Nothing in its hello is of the type it should be."""
    server.methods["initialize"] = lambda server, request: {
        "protocolVersion": 20251125,
        "capabilities": "all of them",
        "serverInfo": None,
        "instructions": {"do": "as I say"},
    }
    server.run()


def bare(server: Server) -> None:
    """Says only its version, and lists tools that it did not announce."""
    server.methods["initialize"] = lambda server, request: {"protocolVersion": server.version}
    server.run()


WAYS = {
    way.__name__: way
    for way in (hangs, deaf, exits, refuses, closes_output, old_version, new_version, shapeless, odd, bare)
}

if __name__ == "__main__":
    WAYS[variant()](Server("hellos"))
