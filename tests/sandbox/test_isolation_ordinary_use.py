"""Ordinary life behind walls: what programs do all day works, in each tier and for whichever user."""

import os
import pty
import secrets
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox.isolation_cases import PATH, PYTHON, SECONDS, TIERS, WHO, House, opened

LIFE = {
    "bash": ("bash", "x=(a b); for i in ${x[@]}; do echo -n $i; done", "ab"),
    "pipes": ("bash", "yes | head -n 1000 | sort -u | tr y z", "z"),
    "process substitution": ("bash", "cat <(echo one) <(echo two) | paste -sd,", "one,two"),
    "here document": ("bash", "cat <<END\nhello\nEND", "hello"),
    "devices": ("bash", "echo x > /dev/null; head -c 4 /dev/urandom | wc -c", "4"),
    "temporary files": ("bash", 'f=$(mktemp) && echo x > "$f" && cat "$f" && rm "$f"', "x"),
    "many processes": ("bash", "for i in $(seq 20); do sleep 0.01 & done; wait; echo done", "done"),
    "chmod": ("bash", "echo 'echo hi' > s && chmod +x s && ./s", "hi"),
    "folders": ("bash", "mkdir -p a/b && echo 1 > a/b/f && mv a/b/f a/f && cp -r a c && rm -r a && cat c/f", "1"),
    "fifo": ("bash", "mkfifo p && (echo through > p &) && cat p", "through"),
    "git": (
        "git",
        "git init -q r && cd r && echo x > f && git add f && git -c user.name=a -c user.email=a@b commit -qm one "
        "&& git mv f g && git stash -q 2>/dev/null; git log --format=%s",
        "one",
    ),
    "threads and children": (
        "python3",
        "python3 -c 'import subprocess, threading; t = threading.Thread(target=lambda: print(subprocess.check_output("
        '["echo", "hi"], text=True), end="")); t.start(); t.join()\'',
        "hi",
    ),
    "queue": (
        "python3",
        "python3 -c 'import multiprocessing as m; q = m.Queue(); p = m.Process(target=q.put, args=(7,)); p.start(); "
        "print(q.get()); p.join()'",
        "7",
    ),
    "event loop": (
        "python3",
        "python3 -c 'import asyncio; p = asyncio.create_subprocess_exec; "
        'asyncio.run(asyncio.wait_for((lambda: p("echo", "loop"))(), 9))\'; sleep 0.2',
        "loop",
    ),
    "node": (
        "node",
        'node -e \'const w = new (require("worker_threads").Worker)("require(\\"worker_threads\\").parentPort'
        '.postMessage(1 + 1)", {eval: true}); w.on("message", m => console.log(m, '
        'require("child_process").execSync("echo child").toString().trim()))\'',
        "2 child",
    ),
    "make": ("make", "printf 'all: a\\n\\t@cat a\\na:\\n\\t@echo made > a\\n' > Makefile && make -s -j4", "made"),
    "compiler": (
        "gcc",
        "echo 'int puts(const char *); int main(void) { return puts(\"built\") < 0; }' > m.c && gcc m.c -o m && ./m",
        "built",
    ),
}

everybody = pytest.mark.parametrize("who", WHO)
everybody_in_time = pytest.mark.parametrize(
    "who", [WHO[0], *(pytest.param(who, marks=pytest.mark.faults) for who in WHO[1:])]
)
every_way = pytest.mark.parametrize("tier", TIERS)


@pytest.fixture
def a_house() -> Iterator[House]:
    with opened(WHO[0]) as house:
        yield house


@pytest.fixture
def house(who: str) -> Iterator[House]:
    with opened(who) as house:
        yield house


@every_way
@everybody_in_time
def test_what_programs_do_all_day_works(house: House, tier: str) -> None:
    there = {name: life for name, life in LIFE.items() if shutil.which(life[0], path=PATH)}
    script = "\n".join(
        f"mkdir '{name}'; (cd '{name}'; {line}\n) > '{name}.out' 2>&1 < /dev/null &"
        for name, (_, line, _) in there.items()
    )

    outcome = house.run(house.order(tier, "bash", "-c", script + "\nwait"))

    said = {name: (house.workspace / f"{name}.out").read_text().strip() for name in there}
    assert outcome.failure == ""
    assert said == {name: expected for name, (_, _, expected) in there.items()}


@every_way
def test_its_end_is_the_end_of_the_program(a_house: House, tier: str) -> None:
    codes = [a_house.run(a_house.order(tier, "sh", "-c", line)).code for line in ("exit 7", "kill -TERM $$")]

    assert codes == [7, 128 + signal.SIGTERM]


@every_way
def test_the_environment_is_what_was_ordered_and_no_more(a_house: House, tier: str) -> None:
    odd = {"EMPTY": "", "LINES_OF": "a\nb", "TOOLCRIB_PROCESS": "mark", "LD_LIBRARY_PATH": "/nowhere"}
    order = a_house.order(tier, PYTHON, "-c", "import json, os; print(json.dumps(dict(os.environ)))", env=odd)

    env = a_house.run(order).answers

    assert {name: value for name, value in env.items() if name not in ("PWD", "LC_CTYPE")} == order.env | {
        "SERVICE": env["SERVICE"]
    }


@every_way
@pytest.mark.parametrize(
    ("program", "number"), [("no-such-program", 2), ("./no-such-program", 2), ("./there", 13)], ids=str
)
def test_a_program_that_cannot_be_run_is_told(a_house: House, tier: str, program: str, number: int) -> None:
    (a_house.workspace / "there").write_text("x")

    outcome = a_house.run(a_house.order(tier, program))

    assert f"[Errno {number}]" in outcome.failure
    assert outcome.code == 127


@every_way
def test_a_folder_to_begin_in_that_is_not_there_is_told(a_house: House, tier: str) -> None:
    outcome = a_house.run(replace(a_house.order(tier, "true"), cwd=str(a_house.workspace / "gone")))

    assert outcome.failure.startswith("cwd: [Errno 2]")


@every_way
@everybody
def test_it_ends_with_whoever_started_it(house: House, tier: str) -> None:
    mark = a_while()
    with house.started(house.order(tier, "sh", "-c", f"echo begins; exec {mark}"), subprocess.DEVNULL) as (process, _):
        wait_until(lambda: running(mark))

        process.kill()

        wait_until(lambda: not running(mark))


def test_behind_bwrap_nothing_outlives_the_first_process(a_house: House) -> None:
    mark = a_while()
    script = f"(setsid {mark} &); (trap '' HUP TERM; {mark} &); exec {mark}"
    with a_house.started(a_house.order("bwrap", "sh", "-c", script), subprocess.DEVNULL) as (process, _):
        wait_until(lambda: len(running(mark)) == 3)

        process.kill()

        wait_until(lambda: not running(mark))


def a_while() -> str:
    """A command that takes long, and that nobody else has."""
    return f"sleep 1000.{secrets.randbits(40)}"


def running(command: str) -> list[int]:
    """Who runs this command."""
    wanted, found = command.replace(" ", "\0").encode() + b"\0", []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == wanted:
                found.append(int(pid))
        except OSError:
            continue
    return found


def wait_until(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


class Screen:
    """The other end of a terminal."""

    def __init__(self, master: int) -> None:
        self.master = master
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + SECONDS
        while text not in self.text:
            ready, _, _ = select.select([self.master], [], [], until - time.monotonic())
            assert ready, f"{text!r} did not come: {self.text!r}"
            self.text += os.read(self.master, 4096).decode(errors="replace").replace("\r\n", "\n")


@contextmanager
def screen(house: House, tier: str, *argv: str) -> Iterator[Screen]:
    master, slave = pty.openpty()
    os.fchown(slave, house.user, -1) if os.geteuid() == 0 else None
    order = replace(house.order(tier, *argv, env={"PS1": "> ", "TERM": "dumb"}), has_terminal=True)
    try:
        with house.started(order, slave):
            os.close(slave)
            yield Screen(master)
    finally:
        os.close(master)


@every_way
@everybody
def test_a_shell_on_a_terminal_has_job_control(house: House, tier: str) -> None:
    interrupted, stopped = a_while(), a_while()
    with screen(house, tier, "bash", "--norc", "--noprofile", "-i") as shell:
        shell.type(f"{interrupted} | cat\n")
        wait_until(lambda: running(interrupted))
        shell.type("\x03")
        wait_until(lambda: not running(interrupted))
        shell.type("echo ended with $?\n")
        shell.wait_for("ended with 130")
        shell.type(f"{stopped}\n")
        wait_until(lambda: running(stopped))
        shell.type("\x1a")
        shell.wait_for("Stopped")
        shell.type("kill %1; fg; echo written > /dev/tty; exit 3\n")
        shell.wait_for("\nwritten")

    assert "no job control" not in shell.text
    assert "cannot set terminal process group" not in shell.text


@every_way
@everybody
def test_ctrl_c_reaches_the_program_and_not_its_walls(house: House, tier: str) -> None:
    catching = (  # short naps: a signal just before one begins is only seen behind it
        "import time\ntry:\n    print('ready')\n    while True:\n        time.sleep(0.05)\n"
        "except KeyboardInterrupt:\n    print('caught')"
    )

    with screen(house, tier, PYTHON, "-c", catching) as program:
        program.wait_for("ready")
        program.type("\x03")
        program.wait_for("caught")


def test_behind_landlock_no_other_terminal_can_be_opened(a_house: House) -> None:
    master, slave = pty.openpty()
    other = os.ttyname(slave)
    os.chmod(other, 0o666)

    outcome = a_house.run(a_house.order("landlock", "sh", "-c", f"echo x > {other}"))

    os.close(master)
    os.close(slave)
    assert outcome.code != 0
    assert "ermission denied" in outcome.err
