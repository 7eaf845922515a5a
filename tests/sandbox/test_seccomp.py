"""The filter of system calls: judged here step by step, for machines that are not at hand as well."""

import errno
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from app.sandbox.isolation import seccomp
from app.sandbox.isolation.seccomp import ALLOW, ARCHITECTURES, DENIED, EQUAL, ERRNO, KILL, SHARED, SYSCALLS, Assembler

Network = Literal["none", "allowlist", "full"]
ROOT = Path(__file__).parents[2]
HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}
NETWORKS: tuple[Network, ...] = ("none", "allowlist", "full")
MOST_STEPS = 4096
REFUSED = ERRNO | errno.EPERM
UNIX, INET, INET6, NETLINK, PACKET, VSOCK = 1, 2, 10, 16, 17, 40
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5
CLOEXEC, NONBLOCK = 0o2000000, 0o4000
THREAD = 0x3D0F00
"""What the C library asks of `clone` for a thread."""

every_machine = pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
every_network = pytest.mark.parametrize("network", NETWORKS)


def judge(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would make of it."""
    given = [*arguments, *[0xDEADBEEF] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number - (1 << 32) if number >> 31 else number, architecture, 0, *given)
    steps = list(struct.iter_unpack("<HBBI", program))
    here = accumulator = 0
    while True:
        code, yes, no, value = steps[here]
        here += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x06:
                return int(value)
            case 0x15 | 0x35 | 0x45:
                is_so = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
                here += yes if is_so else no
            case _:
                raise ValueError(f"step {code:#x}")


class Judge:
    """One filter, asked by names."""

    def __init__(self, machine: str, network: Network, has_namespaces: bool = False) -> None:
        self.program = seccomp.program(network, has_namespaces=has_namespaces, machine=machine)
        self.architecture = ARCHITECTURES[machine]
        self.numbers = SYSCALLS[machine]

    def __call__(self, name: str, *arguments: int) -> int:
        return judge(self.program, self.architecture, self.numbers[name], *arguments)


@every_machine
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip("the kernel's headers are not installed")
    known = {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    }
    newest = max(known.values())

    ours = {name: number for name, number in SYSCALLS[machine].items() if number <= newest}

    assert ours == {name: known.get(name) for name in ours}
    assert len(ours) >= 50


def test_both_architectures_know_the_same_calls() -> None:
    assert set(SYSCALLS["x86_64"]) == set(SYSCALLS["aarch64"])


@every_machine
@every_network
@pytest.mark.parametrize("has_namespaces", [True, False], ids=["own namespaces", "shared"])
def test_what_leads_past_the_walls_is_refused_whatever_the_network(
    machine: str, network: Network, has_namespaces: bool
) -> None:
    ask = Judge(machine, network, has_namespaces)

    assert {name for name in DENIED if ask(name) != REFUSED} == set()
    assert {ask(name) for name in SHARED} == {ALLOW if has_namespaces else REFUSED}
    assert ask("clone3") == ERRNO | errno.ENOSYS
    assert len(ask.program) // 8 <= MOST_STEPS


@every_machine
@every_network
def test_what_nobody_named_is_allowed(machine: str, network: Network) -> None:
    ask = Judge(machine, network)
    named = set(SYSCALLS[machine].values())

    assert {judge(ask.program, ask.architecture, number) for number in range(600) if number not in named} == {ALLOW}


@every_machine
def test_a_process_and_a_thread_can_be_made_but_no_namespace(machine: str) -> None:
    ask = Judge(machine, "none")

    assert [ask("clone", flags) for flags in (17, THREAD, 0x4111, THREAD | 0x1_0000_0000_0000)] == [ALLOW] * 4
    namespaces = [1 << bit for bit in (17, 25, 26, 27, 28, 29, 30)]
    assert {ask("clone", flag | 17) for flag in namespaces} == {REFUSED}


@every_machine
def test_a_terminal_can_be_used_but_nothing_pushed_into_it(machine: str) -> None:
    ask = Judge(machine, "none")
    pushed = (0x5412, 0x541C, 0x5412 | 1 << 32)  # the kernel, too, looks at the low half only

    assert [ask("ioctl", 0, request) for request in pushed] == [REFUSED] * 3
    assert [ask("ioctl", 0, request) for request in (0x5401, 0x5413, 0x540E, 0x5410)] == [ALLOW] * 4


@every_machine
@every_network
def test_pairs_are_unix_sockets_that_stay_connected(machine: str, network: Network) -> None:
    ask = Judge(machine, network)

    kinds = [STREAM, STREAM | CLOEXEC, SEQPACKET | CLOEXEC | NONBLOCK]
    assert [ask("socketpair", UNIX, kind, 0) for kind in kinds] == [ALLOW] * 3
    assert [ask("socketpair", UNIX, kind, 0) for kind in (DGRAM, DGRAM | CLOEXEC, RAW)] == [REFUSED] * 3
    assert [ask("socketpair", family, STREAM, 0) for family in (INET, NETLINK, 0)] == [REFUSED] * 3


@every_machine
def test_without_a_network_there_are_no_sockets(machine: str) -> None:
    ask = Judge(machine, "none")

    assert {ask("socket", family, kind, 0) for family in range(46) for kind in range(11)} == {REFUSED}


@every_machine
def test_an_allowlist_leaves_tcp(machine: str) -> None:
    ask = Judge(machine, "allowlist")

    allowed = {
        (family, kind, protocol)
        for family in range(46)
        for kind in range(11)
        for protocol in (0, 1, 6, 17, 33, 132, 136, 255, 256, 262)
        if ask("socket", family, kind | CLOEXEC, protocol) == ALLOW
    }
    assert allowed == {(family, STREAM, protocol) for family in (INET, INET6) for protocol in (0, 6)}


@every_machine
def test_an_allowlist_leaves_no_fast_open(machine: str) -> None:
    ask, fast, quiet = Judge(machine, "allowlist"), 0x20000000, 0x4000

    assert [ask("sendto", 3, 0, 1, fast | quiet), ask("sendmsg", 3, 0, fast), ask("sendmmsg", 3, 0, 1, fast)] == [
        REFUSED,
        REFUSED,
        REFUSED,
    ]
    assert [ask("sendto", 3, fast, fast, quiet), ask("sendmsg", 3, fast, quiet), ask("sendmmsg", 3, 0, fast, 0)] == [
        ALLOW,
        ALLOW,
        ALLOW,
    ]
    assert ask("setsockopt", 3, 6, 30) == REFUSED
    assert [ask("setsockopt", 3, level, option) for level, option in ((6, 1), (1, 30), (41, 26))] == [ALLOW] * 3


@every_machine
def test_who_shares_the_network_of_the_machine_may_not_listen_on_an_allowlist(machine: str) -> None:
    assert Judge(machine, "allowlist", has_namespaces=False)("listen", 3, 1) == REFUSED
    assert Judge(machine, "allowlist", has_namespaces=True)("listen", 3, 1) == ALLOW
    assert Judge(machine, "full", has_namespaces=False)("listen", 3, 1) == ALLOW


@every_machine
def test_a_full_network_is_the_internet_and_its_routes(machine: str) -> None:
    ask = Judge(machine, "full")

    assert {ask("socket", family, kind, 0) for family in (INET, INET6) for kind in (STREAM, DGRAM, RAW)} == {ALLOW}
    assert [ask("socket", NETLINK, RAW | CLOEXEC, protocol) for protocol in (0, 9, 15)] == [ALLOW, REFUSED, REFUSED]
    assert {ask("socket", family, STREAM, 0) for family in (0, UNIX, PACKET, VSOCK, 38)} == {REFUSED}


@every_machine
@every_network
def test_calls_in_the_words_of_another_architecture_end_the_process(machine: str, network: Network) -> None:
    ask = Judge(machine, network)
    others = {0x40000003, 0x40000028, 0xC000003E, 0xC00000B7} - {ask.architecture}

    assert {judge(ask.program, other, number) for other in others for number in (0, 1, 41, 59)} == {KILL}


def test_the_second_numbers_of_the_same_processor_are_refused() -> None:
    ask = Judge("x86_64", "full")
    numbers = (0x40000000, 0x40000000 | 41, 0x40000000 | 520, 0xFFFFFFFF)

    assert [judge(ask.program, ask.architecture, number) for number in numbers] == [REFUSED] * 4


def test_a_machine_nobody_knows_has_no_filter() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program("none", has_namespaces=True, machine="riscv64")


def test_a_jump_too_far_is_no_program() -> None:
    steps = Assembler()
    steps.jump(EQUAL, 1, yes="far")
    for _ in range(256):
        steps.ret(ALLOW)
    steps.label("far")

    with pytest.raises(ValueError, match="256 steps"):
        steps.assemble()


def test_the_kernel_takes_it_and_it_holds_for_what_is_started() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import os\n"
        "from app.sandbox import syscalls\nfrom app.sandbox.isolation import seccomp\n"
        "syscalls.prctl(38, 1)\n"
        "seccomp.install(seccomp.program('none', has_namespaces=False))\n"
        "os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', 'import socket; socket.socketpair(); "
        "socket.socket()'])\n"
    )

    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, ROOT], capture_output=True, text=True)

    assert "PermissionError: [Errno 1]" in done.stderr
