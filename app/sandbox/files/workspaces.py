"""The workspaces of sessions: where they may be, how they are created and opened, and their lanes.

A workspace inside another one shares its lane: that of the outermost known root around it. Known are the service's
own workspace and those of all sessions, also of deleted ones until the next start. When a root around others becomes
known, they change to its lane for later calls.

Folders that were created here outlive their session: nothing that a tool wrote is lost, and a new session of the same
name gets a new folder.
"""

import errno
import hashlib
import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from app.core.errors import ToolUnavailable
from app.core.files import is_of_git
from app.core.sessions import InvalidSession, Session, is_inside
from app.sandbox.files.ownership import Owner, allow_entering, set_owner
from app.sandbox.files.workspace import LocalWorkspace, lane_of

log = logging.getLogger(__name__)

HOME_FOLDER = "workspace"
WELCOME = "Hello from your Toolcrib workspace.\nAgents see this folder and nothing outside it.\n"


def make_workspace(path: Path, owner: Owner | None = None) -> Path:
    """Create a workspace with one file to read, if it does not exist, and set its owner."""
    if not path.exists():
        path.mkdir(parents=True, mode=0o755)
        (path / "hello.txt").write_text(WELCOME)
    set_owner(path, owner)
    return path


def python_files(folder: Path) -> list[Path]:
    """The Python files of a folder that are to be loaded, by name. A link may not lead out of the folder."""
    files = []
    for path in sorted(folder.iterdir()):
        if path.suffix != ".py" or path.name.startswith(("_", ".")) or not path.is_file():
            continue
        if path.resolve().parent.is_relative_to(folder.resolve()):
            files.append(path)
        else:
            log.warning("%s leads out of its folder and is not loaded", path)
    return files


MAX_OPEN = 128  # each has a file descriptor
MAX_NAME_CHARS = 128
OWN_FOLDER = "workspaces"
MISSING = (errno.ENOENT, errno.ENOTDIR)


class Workspaces:
    """The `WorkspaceLocator` port. `made` is the folder of workspaces created here, which belong to `owner`.

    Only `real`, `locate` and `make` may be called outside the event loop.
    """

    def __init__(self, home: LocalWorkspace, data_dir: Path, roots: Iterable[Path], owner: Owner | None = None) -> None:
        self.home = home.path
        self._home = home
        self._data = os.path.realpath(data_dir)
        self.made = os.path.join(self._data, OWN_FOLDER)
        self._roots = tuple(os.path.realpath(root) for root in roots)
        self._owner = owner
        self._known = {self.home}
        self._pool: OrderedDict[str, LocalWorkspace] = OrderedDict()

    def close(self) -> None:
        """Close all, even those in use: the service is shutting down."""
        for workspace in (self._home, *self._pool.values()):
            workspace.close()
        self._home.around.close()
        self._pool.clear()

    def of(self, session: Session) -> LocalWorkspace:
        root = session.workspace
        if root is None:
            return self._home
        found = self._pool.get(root)
        if found is None or not found.is_in_place:
            return self._reopen(session.principal, root)
        self._pool.move_to_end(root)
        return found

    def real(self, path: str) -> str:
        try:
            return os.path.realpath(os.path.join(self.home, path))
        except (OSError, ValueError):  # a NUL, or characters that no file name can have
            raise InvalidSession("workspace: this is not a path.") from None

    def locate(self, principal: str, asked: str) -> str | None:
        real = self.real(asked)
        if real == self.home:
            return None
        if not self._allows(principal, real):
            raise InvalidSession(
                f"workspace: {asked[:200]!r} is neither inside the service's workspace nor in one of the folders its "
                "operator allows (`workspace_roots`), symlinks resolved; or it is the service's or git's own."
            )
        return real

    def enter(self, root: str) -> None:
        try:
            self._open(root)
        except OSError as error:
            raise InvalidSession(f"workspace: {_reason(root, error)}") from None
        self.know([root])

    def make(self, principal: str, id: str) -> str:
        parent = os.path.join(self.made, _name(principal))
        os.makedirs(parent, exist_ok=True)
        for folder in (self.made, parent):
            allow_entering(Path(folder), self._owner)
        path = os.path.join(parent, _name(id))
        try:
            os.mkdir(path)
        except FileExistsError:  # from an earlier session of this name
            path += f"-{secrets.token_hex(4)}"
            os.mkdir(path)
        set_owner(Path(path), self._owner)
        return path

    def discard(self, root: str) -> None:
        self._pool.pop(root, None)
        with suppress(OSError):
            os.rmdir(root)

    def know(self, roots: Iterable[str]) -> None:
        """Learn of roots. Workspaces inside them are opened again, in their new lane."""
        fresh = {root for root in roots if root not in self._known and not self._is_own(root)}
        if not fresh:
            return
        self._known |= fresh
        for root in [root for root in self._pool if self._outermost(root) in fresh - {root}]:
            del self._pool[root]
        if (outer := self._outermost(self.home)) in fresh:
            with suppress(OSError):
                self._home = self._home.in_lane(lane_of(os.stat(outer)))

    def _reopen(self, principal: str, root: str) -> LocalWorkspace:
        """Open it for a call: the error is a sentence for the model."""
        self._pool.pop(root, None)
        if not self._allows(principal, root):
            raise ToolUnavailable(
                "The workspace of this session is in no folder that the service allows any more; use another session."
            )
        try:
            return self._open(root)
        except OSError as error:
            raise ToolUnavailable(f"The workspace of this session cannot be used: {_reason(root, error)}") from None

    def _open(self, root: str) -> LocalWorkspace:
        """Open a folder by its resolved path, and check that it is the same: the path may contain a link by now."""
        opened = LocalWorkspace(Path(root), self._lane(root), self._home.around)
        if opened.path != root:
            raise OSError(errno.ESTALE, "moved or replaced")
        self._pool[root] = opened
        self._pool.move_to_end(root)
        if len(self._pool) > MAX_OPEN:
            self._pool.popitem(last=False)  # closed when the last call that uses it ends
        return opened

    def _allows(self, principal: str, real: str) -> bool:
        """Never the data directory, except workspaces in it, and nothing around it. Never a `.git` folder: a path
        relative to it would not show that git executes what is written there."""
        around = [root for root in (self.home, *self._roots, self.made) if is_inside(real, root)]
        if around and is_of_git(real.removeprefix(max(around, key=len))):
            return False
        if is_inside(real, self._data):
            own = os.path.join(self.made, _name(principal))
            return self._is_in_home(real) or (is_inside(real, own) and real != own)
        if is_inside(self._data, real):
            return False
        return any(root != self.made for root in around)

    def _is_in_home(self, real: str) -> bool:
        """Whether it is in the service's own workspace, if that is inside the data directory."""
        return self.home != self._data and is_inside(self.home, self._data) and is_inside(real, self.home)

    def _lane(self, root: str) -> str | None:
        """The lane that a root shares; None: its own."""
        outer = self._outermost(root)
        if outer == root:
            return None
        return self._home.lane if outer == self.home else lane_of(os.stat(outer))

    def _outermost(self, root: str) -> str:
        return next((path for path in _ancestors(root) if path in self._known or self._is_own(path)), root)

    def _is_own(self, path: str) -> bool:
        """Whether it is a folder created here: two levels below `made`."""
        return os.path.dirname(os.path.dirname(path)) == self.made


def _ancestors(path: str) -> Iterator[str]:
    """The folders above a path, from the top, and the path itself."""
    parts, ancestor = path.split("/")[1:], ""
    yield "/"
    for part in parts:
        ancestor += f"/{part}"
        yield ancestor


def _name(text: str) -> str:
    """A text as a folder name: different texts stay different, and none is a path or hidden."""
    name = quote(text, safe="@")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[: MAX_NAME_CHARS - 34]}--{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _reason(root: str, error: OSError) -> str:
    if error.errno in MISSING:
        return f"{root} does not exist, or is not a folder."
    if error.errno == errno.ESTALE:
        return f"{root} was moved, or a part of its path was replaced by a link."
    return f"{root} cannot be opened by this service ({errno.errorcode.get(error.errno or 0, 'EIO')})."
