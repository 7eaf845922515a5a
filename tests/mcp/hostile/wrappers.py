"""`python wrappers.py WAY TAG`: servers that are more than one process. The command line of each has `TAG` in it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

if (root := str(Path(__file__).resolve().parents[3])) not in sys.path:
    sys.path[0] = root  # instead of this folder

from tests.mcp.hostile.rpc import READS, Raw, Server, text

ME = [sys.executable, str(Path(__file__).resolve())]
FOREVER = 86_400


def serve() -> None:
    """The server inside. `waits` says who it is, and nothing more."""
    server = Server("wrappers")
    server.add("pid", lambda server, request: text(str(os.getpid())), annotations=READS)
    server.add("waits", waits)
    server.run()


def waits(server: Server, request: Raw) -> None:
    token = request["params"]["_meta"]["progressToken"]
    server.tell("notifications/progress", {"progressToken": token, "progress": 1, "message": str(os.getpid())})


def stubborn() -> None:
    """Stays whatever it is told."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(FOREVER)


def plain(tag: str) -> None:
    serve()


def shell(tag: str) -> None:
    """As npx does it: the server is a child of the program that was started."""
    _sh(f'"$0" "$1" plain {tag}; exit $?')


def background(tag: str) -> None:
    """A child beside the server that does not care for signals."""
    _sh(f'"$0" "$1" stubborn {tag} </dev/null >/dev/null 2>&1 & "$0" "$1" plain {tag}; exit $?')


def daemon(tag: str) -> None:
    """The same, and the child left the group."""
    _sh(f'setsid "$0" "$1" stubborn {tag} </dev/null >/dev/null 2>&1 & "$0" "$1" plain {tag}; exit $?')


def holder(tag: str) -> None:
    """The same, and the child keeps the server's output open, so that nobody sees its end there."""
    _sh(f'setsid "$0" "$1" stubborn {tag} & "$0" "$1" plain {tag}; exit $?')


def forks(tag: str) -> None:
    """The program that was started is gone at once; another one serves in its place."""
    if os.fork():
        os._exit(0)
    serve()


def forks_away(tag: str) -> None:
    """The same, in a session of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    serve()


def litters(tag: str) -> None:
    """Leaves a daemon behind each time it is started, and dies."""
    subprocess.Popen([*ME, "stubborn", tag], start_new_session=True)
    os._exit(1)


def _sh(script: str) -> None:
    os.execv("/bin/sh", ["/bin/sh", "-c", script, *ME])


WAYS = {way.__name__: way for way in (plain, shell, background, daemon, holder, forks, forks_away, litters)}

if __name__ == "__main__":
    if sys.argv[1] == "stubborn":
        stubborn()
    WAYS[sys.argv[1]](sys.argv[2])
