"""Walled processes: what a model wrote, behind what this machine can put around it."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Callable
from contextlib import ExitStack

from app.core.ports import Workspace
from app.core.profiles import Profile
from app.core.sessions import Session
from app.core.walls import Backend, Child, Command, Decision, Network, Walls
from app.sandbox.children import LocalChild, Stream


class BareProcesses:
    """The `WalledProcesses` port without walls."""

    def walls(self, session: Session, *, is_escalated: bool = False) -> Walls | None:
        return Walls(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL)

    async def start(
        self, command: Command, session: Session, workspace: Workspace, tell: Callable[[Decision], None]
    ) -> Child:
        cwd = os.path.join(workspace.root, workspace.folder(command.folder))
        outlets: dict[Stream, int] = {}
        inlet, channel, passed = None, None, list[int]()
        with ExitStack() as theirs:
            stdin: int = subprocess.DEVNULL
            if command.tty is not None:
                master, slave = pty.openpty()
                theirs.callback(os.close, slave)
                fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *command.tty, 0, 0))
                stdin = out = err = slave
                outlets, inlet = {"stdout": master}, master
            else:
                mine, out = os.pipe()
                theirs.callback(os.close, out)
                errors, err = os.pipe()
                theirs.callback(os.close, err)
                outlets = {"stdout": mine, "stderr": errors}
                if command.has_stdin:
                    stdin, inlet = os.pipe()
                    theirs.callback(os.close, stdin)
            argv = list(command.argv)
            if command.has_channel:
                (reads, ours), (own, writes) = os.pipe(), os.pipe()
                theirs.callback(os.close, reads)
                theirs.callback(os.close, writes)
                channel, passed = (own, ours), [reads, writes]
                argv = ["sh", "-c", f'exec 3<&{reads} 4>&{writes}; exec "$@"', "sh", *argv]
            process = subprocess.Popen(  # noqa: ASYNC220
                ["setsid", "-c", *argv] if command.tty else argv,
                stdin=stdin,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env={"PATH": os.environ["PATH"], "HOME": workspace.root} | dict(command.env),
                pass_fds=passed,
                start_new_session=command.tty is None,
            )
        return LocalChild(process, self.walls(session) or _NONE, outlets, inlet, channel, command.tty is not None)


_NONE = Walls(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL)
