"""Images without an engine: the instructions of a Dockerfile, run one by one in trees of their own.

A tree is this machine's system folders with a writable layer above them, in a mount namespace that ends with the test:
the instructions run as written, as root and with an empty environment, and the machine stays as it was. In place of the
base image stands this Debian with the interpreter of the tests. An instruction not known here is an error.
"""

import json
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HANG = 600.0
LAYERED = ("usr", "etc", "var", "opt")
NEEDED = ("unshare", "nsenter", "setpriv", "chroot", "mount", "apt-get")
SYSTEM_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
MACHINE = re.compile(r"PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|(https?|no)_proxy", re.IGNORECASE)
"""How this machine reaches its registries; an operator would give them as build arguments."""

LAY = """
for name in {layered}; do
  mkdir -p "$1/$name" "$1.upper/$name" "$1.work/$name"
  mount -t overlay overlay -o "lowerdir=/$name,upperdir=$1.upper/$name,workdir=$1.work/$name" "$1/$name"
done
ln -s usr/bin usr/sbin usr/lib usr/lib64 "$1/"
mkdir -p "$1/proc" "$1/dev" "$1/run" "$1/tmp" "$1/root" "$1/$2"
chmod 1777 "$1/tmp"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
cp --remove-destination -L /etc/resolv.conf "$1/etc/resolv.conf"
case "$2" in /usr*) ;; *) mount --bind "$2" "$1/$2" ;; esac
"""
PROBE = """
mount -t tmpfs probe "$1"
mkdir "$1/upper" "$1/work"
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$1/upper,workdir=$1/work" /usr
"""
RAISE_LOOPBACK = """
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))
"""
ENTER = """
"$4" -c "$5"
mount --rbind "$1" "$1"
for name in "" {layered}; do mount -o remount,bind,ro "$1/$name"; done
mount --bind "$2" "$1/data"
mount -t tmpfs -o "$3" tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
root=$1
shift 5
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Instruction:
    name: str
    rest: str


@dataclass
class Stage:
    """One FROM and what follows."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [instruction.rest for instruction in self.instructions if instruction.name == name]

    def packages(self) -> list[str]:
        """What this stage installs from Debian."""
        commands = [command for run in self.all("RUN") for command in re.split(r"&&|;", run)]
        installs = [shlex.split(command)[2:] for command in commands if command.split()[:2] == ["apt-get", "install"]]
        return [word for words in installs for word in words if not word.startswith("-")]


def read_dockerfile(path: Path) -> list[Stage]:
    stages: list[Stage] = []
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", "", "\n".join(lines)).splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, *named = rest.split()
            stages.append(Stage(base, named[1] if named else ""))
        else:
            stages[-1].instructions.append(Instruction(name, rest.strip()))
    return stages


def build_context(root: Path) -> list[Path]:
    """The files a build may see: the last line of .dockerignore that names a file, or a folder above it, counts."""
    rules = [line.strip() for line in (root / ".dockerignore").read_text().splitlines()]
    patterns = [(_pattern(rule.lstrip("!")), rule.startswith("!")) for rule in rules if rule and rule[0] != "#"]
    return sorted(_kept(root, Path(), patterns))


def _kept(root: Path, folder: Path, patterns: list[tuple[re.Pattern[str], bool]], above: int = -1) -> Iterator[Path]:
    """What is in a folder for which the rule with the number `above` counts."""
    for entry in os.scandir(root / folder):
        name = folder / entry.name
        hits = [number for number, (pattern, _) in enumerate(patterns) if pattern.fullmatch(str(name))]
        counting = max([above, *hits])
        if entry.is_dir(follow_symlinks=False):
            yield from _kept(root, name, patterns, counting)
        elif (counting < 0 or patterns[counting][1]) and not entry.is_dir():
            yield name


def _pattern(rule: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", rule.strip("/"))
    meanings = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meanings.get(part) or re.escape(part) for part in parts))


class Workshop:
    """A mount namespace with room for trees; it goes away with the process that holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = 'mount -t tmpfs -o mode=755 workshop "$1" && echo open && exec cat'
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "open\n"

    @property
    def inside(self) -> list[str]:
        return ["nsenter", f"--target={self._keeper.pid}", "--mount"]

    def seen(self, path: Path) -> Path:
        """A path of the namespace, from outside."""
        return Path(f"/proc/{self._keeper.pid}/root{path}")

    def do(self, *command: str) -> None:
        done = subprocess.run([*self.inside, *command], capture_output=True, text=True, timeout=HANG, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")

    def lay(self, name: str) -> Path:
        """A new tree."""
        tree = self.folder / name
        script = LAY.format(layered=" ".join(LAYERED))
        self.do("sh", "-euc", script, "sh", str(tree), sys.base_prefix)
        settings = Path.home() / ".config/pip"
        if settings.is_dir():
            shutil.copytree(settings, self.seen(tree) / "root/.config/pip")
        if not any((Path(folder) / "python").exists() for folder in base_path().split(":")):
            (self.seen(tree) / "usr/bin/python").symlink_to("python3")
        return tree

    def close(self) -> None:
        self._keeper.communicate(timeout=HANG)


def why_not(folder: Path) -> str | None:
    """What this machine lacks for trees."""
    if os.geteuid() != 0:
        return "trees are mounted by root"
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        return f"no {', '.join(missing)} here"
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-euc", PROBE, "sh", str(folder)]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    return f"no layers can be mounted here: {tried.stderr.strip()}" if tried.returncode else None


def base_path() -> str:
    """Where the base image would have its interpreter, and the system's programs."""
    here = f"{sys.base_prefix}/bin"
    return SYSTEM_PATH if here in SYSTEM_PATH.split(":") else f"{here}:{SYSTEM_PATH}"


@dataclass
class Image:
    """A finished stage: its tree, and how a container of it is started."""

    workshop: Workshop
    tree: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": base_path()})
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    stop_signal: str = ""
    volume: str = ""
    port: int = 0

    @property
    def seen(self) -> Path:
        return self.workshop.seen(self.tree)

    def new_volume(self, name: str) -> Path:
        """A named volume at its first use: it takes content, owner and mode from the image."""
        volume = self.workshop.folder / name
        self.workshop.do("cp", "-a", f"{self.tree}{self.volume}", str(volume))
        return volume


def build(dockerfile: Path, context: Path, workshop: Workshop) -> Image:
    """The last stage, with every stage before it built first."""
    files = {name: context / name for name in build_context(context)}
    built: dict[str, Image] = {}
    for number, stage in enumerate(read_dockerfile(dockerfile)):
        assert stage.base not in built, "stages start from the base image, or from one that adds nothing to it"
        image = Image(workshop, workshop.lay(f"stage{number}"))
        for instruction in stage.instructions:
            _follow(instruction, image, files, built)
        if stage.instructions:
            built[stage.name] = image
    return image


def _follow(instruction: Instruction, image: Image, files: dict[Path, Path], built: dict[str, Image]) -> None:
    rest = instruction.rest
    match instruction.name:
        case "RUN":
            _run(image, rest)
        case "COPY" if rest.startswith("--from="):
            _copy_from(image, rest, built)
        case "COPY":
            _copy(image, rest.split(), files)
        case "WORKDIR":
            image.folder = rest
            (image.seen / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "ENV":
            image.env |= _pairs(string.Template(rest).substitute(image.env))
        case "LABEL":
            image.labels |= _pairs(rest)
        case name if name in NOTES:
            noted, read = NOTES[name]
            setattr(image, noted, read(rest))
        case unknown:
            raise ValueError(f"no builder for {unknown} {rest}")


NOTES: dict[str, tuple[str, Callable[[str], object]]] = {
    "USER": ("user", str),
    "VOLUME": ("volume", str),
    "EXPOSE": ("port", int),
    "STOPSIGNAL": ("stop_signal", str),
    "ENTRYPOINT": ("entrypoint", json.loads),
    "CMD": ("command", json.loads),
    "HEALTHCHECK": ("health", lambda rest: json.loads(rest.partition("CMD ")[2])),
}


def _run(image: Image, script: str) -> None:
    machine = {name: value for name, value in os.environ.items() if MACHINE.fullmatch(name)}
    env = {"HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **machine, **image.env}
    assert image.user == "0:0", "steps run as root only"
    image.workshop.do("chroot", str(image.tree), *_in(env, image.folder), "/bin/sh", "-c", script)


def _copy(image: Image, words: list[str], files: dict[Path, Path]) -> None:
    """Files into a folder, or a folder's content into another one."""
    *sources, target = words
    into = image.seen / image.folder.lstrip("/") / target
    for source in sources:
        found = [name for name in files if name.is_relative_to(source)]
        assert found, f"COPY {source}: not in the build context"
        for name in found:
            to = into / (name.relative_to(source) if name != Path(source) else name.name)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(files[name], to)


def _copy_from(image: Image, rest: str, built: dict[str, Image]) -> None:
    stage, source, target = rest.removeprefix("--from=").split()
    into = image.tree / target.lstrip("/")
    image.workshop.do("mkdir", "-p", str(into))
    image.workshop.do("cp", "-a", f"{built[stage].tree / source.lstrip('/')}/.", str(into))


def _pairs(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(text))


def _in(env: dict[str, str], folder: str) -> list[str]:
    return ["env", "-i", f"--chdir={folder}", *(f"{name}={value}" for name, value in env.items())]


class Container:
    """A process of an image in namespaces of its own: read-only but for its volume and /tmp, no rights, loopback."""

    def __init__(self, image: Image, volume: Path, tmpfs: str, env: dict[str, str], *command: str) -> None:
        self._image = image
        self._env = image.env | env
        alone = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"]
        enter = ["sh", "-euc", ENTER.format(layered=" ".join(LAYERED)), "sh", str(image.tree), str(volume), tmpfs]
        outside = ["setpriv", "--pdeathsig=KILL", *image.workshop.inside, *alone, *enter]
        inside = [sys.executable, RAISE_LOOPBACK, *self._as_user(), *(command or (*image.entrypoint, *image.command))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([*outside, *inside], stdout=pipe, stderr=pipe, text=True)

    def lines(self) -> Iterator[str]:
        """What it says, line by line."""
        assert self._process.stdout is not None
        return iter(self._process.stdout.readline, "")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Another process beside the first one, with the same rights."""
        beside = ["nsenter", f"--target={self._first()}", "--mount", "--net", "--pid", "--ipc", "--root"]
        whole = [*beside, *self._as_user(), *command]
        return subprocess.run(whole, capture_output=True, text=True, timeout=HANG, check=False)

    def stop(self, sign: str) -> tuple[int, str]:
        """Signal the first process; the exit code and what it said on stderr."""
        os.kill(self._first(), signal.Signals[sign])
        return self.wait()

    def wait(self) -> tuple[int, str]:
        _, said = self._process.communicate(timeout=HANG)
        return self._process.returncode, said

    def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self.wait()

    def _first(self) -> int:
        """The process with the id 1 inside, by its id here."""
        [child] = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(child)

    def _as_user(self) -> list[str]:
        uid, gid = self._image.user.split(":")
        rights = ["--pdeathsig=KILL", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        return ["setpriv", f"--reuid={uid}", f"--regid={gid}", *rights, *_in(self._env, self._image.folder)]
