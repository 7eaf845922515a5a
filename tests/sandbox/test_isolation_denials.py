"""What a process behind walls cannot do, in each tier, for a service that is root and for one that is not."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.isolation_cases import PYTHON, TIERS, WHO, House, Outcome, opened

PROBER = Path(__file__).with_name("escape_probe.py")
NOWHERE = ["127.0.0.1", 9]
CLOSED = {"EACCES", "EPERM", "ENOENT", "EROFS", "ESRCH", "EXDEV"}
"""How a wall says no: it is not allowed, or there is nothing there."""

DENIED = [
    *("write outside", "change outside", "truncate outside", "remove outside", "move outside", "link outside"),
    *("read outside", "read the state", "list the state", "write the system", "write at the root", "write a device"),
    *("environment of the service", "memory of the service", "files of the service", "signal to the service"),
]
REFUSED = [
    *("ptrace", "process_vm_readv", "pidfd_getfd", "io_uring_setup", "unshare", "clone with a namespace", "setns"),
    *("mount", "fsopen", "open_tree", "chroot", "keyctl", "bpf", "perf_event_open", "userfaultfd"),
    *("open_by_handle_at", "TIOCSTI", "TIOCLINUX", "datagram of a pair", "unix socket", "abstract socket"),
    *("packet socket", "audit by netlink"),
]
SOCKETS = [
    *("TCP", "TCP over IPv6", "UDP", "UDP over IPv6", "Fast Open by sendto", "Fast Open by sendmsg"),
    *("Fast Open by option", "MPTCP", "SCTP", "raw socket", "netlink", "bind", "listen", "proxy"),
]


@dataclass
class Probes:
    """Each tier is probed once, and many tests read what came of it."""

    houses: ExitStack = field(default_factory=ExitStack)
    known: dict[tuple[Any, ...], Outcome] = field(default_factory=dict)

    def __call__(self, tier: str, who: str, **changes: Any) -> Outcome:
        key = (tier, who, *sorted(changes.items()))
        if key not in self.known:
            self.known[key] = probe(self.houses.enter_context(opened(who)), tier, **changes)
        return self.known[key]

    def user(self, who: str) -> int:
        with opened(who) as house:
            return house.user


def probe(house: House, tier: str, **changes: Any) -> Outcome:
    without = changes.pop("without_user_namespaces", False)
    if changes.get("proxy") == "tcp6":
        changes["proxy"] = house.sockets["tcp6"][1]
    there = house.workspace / "escape_probe.py"
    there.write_text(PROBER.read_text())
    there.chmod(0o644)
    inside = ["127.0.0.1", 3128] if changes.get("proxy") == 0 else NOWHERE
    told = {
        "base": str(house.base),
        "workspace": str(house.workspace),
        "temporary": str(house.temporary),
        "sockets": house.sockets | {"proxy": inside},
    }
    order = house.order(tier, PYTHON, "-I", "-S", str(there), json.dumps(told), **changes)
    return house.run(order, sockets=house.sockets, without_user_namespaces=without)


@pytest.fixture(scope="module")
def probes() -> Iterator[Probes]:
    probes = Probes()
    with probes.houses:
        yield probes


every_way = pytest.mark.parametrize("tier", TIERS)
everybody = pytest.mark.parametrize("who", WHO)


@every_way
@everybody
def test_what_is_outside_stays_as_it_is_and_unseen(probes: Probes, tier: str, who: str) -> None:
    answers = probes(tier, who).answers

    assert {name: answers[name] for name in DENIED if answers[name] not in CLOSED} == {}
    assert {answers[name] for name in ("write in the workspace", "write in the temporary folder")} == {"ok"}
    assert answers["read the system"] == "ok"


@every_way
@everybody
def test_calls_that_lead_past_the_walls_are_refused(probes: Probes, tier: str, who: str) -> None:
    answers = probes(tier, who).answers

    assert {name: answers[name] for name in REFUSED if answers[name] != "EPERM"} == {}
    assert answers["clone3"] == "ENOSYS"


@every_way
@everybody
def test_without_a_network_there_is_no_socket_but_a_connected_pair(probes: Probes, tier: str, who: str) -> None:
    outcome = probes(tier, who)

    assert {name: outcome.answers[name] for name in SOCKETS if outcome.answers[name] != "EPERM"} == {}
    assert outcome.answers["pair"] == "ok"
    assert outcome.heard == []


@every_way
@everybody
def test_nothing_is_left_of_what_the_service_may_do(probes: Probes, tier: str, who: str) -> None:
    status = probes(tier, who).answers["status"]

    none = "0" * 16
    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [none] * 4
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert set(status["Uid"].split()) == {str(probes.user(who))}
    assert len(status["fds"].split()) == 4  # its own look at them is the fourth
    if who == "identity":
        assert status["CapBnd"] == none
        assert status["Groups"] in ("", str(probes.user(who)))


@everybody
def test_landlock_closes_what_processes_of_a_user_share(probes: Probes, who: str) -> None:
    shared = ("shmget", "mq_open")

    assert {probes("landlock", who).answers[name] for name in shared} == {"EPERM"}
    assert {probes("bwrap", who).answers[name] for name in shared} == {"ok"}  # they are in namespaces of their own
    assert probes("landlock", who).answers["list named memory"] == "EACCES"


@everybody
def test_without_walls_the_same_probes_get_through(probes: Probes, who: str) -> None:
    """Else what the others show would be worth nothing."""
    outcome = probes("none", who)

    through = {"write outside", "read outside", "read the state", "list the state", "truncate outside"}
    through |= {"change outside", "remove outside", "move outside", "unshare"}
    through |= {"TCP", "UDP", "UDP over IPv6", "unix socket", "abstract socket", "datagram of a pair", "netlink"}
    through |= {"Fast Open by sendto", "bind", "listen"}
    assert {name: outcome.answers[name] for name in through if outcome.answers[name] != "ok"} == {}
    assert set(outcome.heard) == {"tcp4", "tcp6", "udp4", "udp6", "path", "abstract", "datagrams"}
    if who == "ordinary":
        seen = ("environment of the service", "files of the service", "signal to the service")
        assert {outcome.answers[name] for name in seen} == {"ok"}


@everybody
def test_behind_bwrap_an_allowlist_leaves_one_listener_and_nothing_else(probes: Probes, who: str) -> None:
    outcome = probes("bwrap", who, network="allowlist", proxy=0)

    assert outcome.answers["proxy"] == "ok"
    assert {outcome.answers[name] for name in ("TCP", "TCP over IPv6")} == {"ECONNREFUSED"}
    others = set(SOCKETS) - {"proxy", "TCP", "TCP over IPv6", "bind", "listen"}
    assert {name: outcome.answers[name] for name in others if outcome.answers[name] != "EPERM"} == {}
    assert outcome.heard == []


@everybody
def test_behind_landlock_an_allowlist_leaves_one_port_and_nothing_else(probes: Probes, who: str) -> None:
    outcome = probes("landlock", who, network="allowlist", proxy="tcp6")

    assert outcome.answers["TCP over IPv6"] == "ok"
    assert {outcome.answers[name] for name in ("TCP", "proxy", "bind")} == {"EACCES"}
    others = set(SOCKETS) - {"proxy", "TCP", "TCP over IPv6", "bind"}
    assert {name: outcome.answers[name] for name in others if outcome.answers[name] != "EPERM"} == {}
    assert outcome.heard == ["tcp6"]


@every_way
@everybody
def test_a_full_network_is_the_internet_and_no_unix_socket(probes: Probes, tier: str, who: str) -> None:
    outcome = probes(tier, who, network="full")

    reached = ("TCP", "TCP over IPv6", "UDP", "UDP over IPv6", "netlink", "bind", "listen")
    assert {name: outcome.answers[name] for name in reached if outcome.answers[name] != "ok"} == {}
    assert {name: outcome.answers[name] for name in REFUSED if outcome.answers[name] != "EPERM"} == {}
    assert set(outcome.heard) == {"tcp4", "tcp6", "udp4", "udp6"}


@everybody
def test_where_user_namespaces_are_forbidden_bwrap_fails(probes: Probes, who: str) -> None:
    outcome = probes("bwrap", who, without_user_namespaces=True)

    assert outcome.code != 0
    assert "namespace" in outcome.err
    assert outcome.out == ""


@everybody
def test_where_user_namespaces_are_forbidden_landlock_is_whole(probes: Probes, who: str) -> None:
    with_them, without = probes("landlock", who), probes("landlock", who, without_user_namespaces=True)

    assert without.answers == with_them.answers
    assert without.heard == []
