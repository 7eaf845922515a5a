"""Bombs behind walls: each is put out, said to be one, and the service goes on as before."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.faults.sandboxed_service import BACKENDS, WalledService, alive, memory_mb, run, walled

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("sandbox")]  # they share the limit of one user id

MEMORY = 256 * 1024 * 1024
PROCESSES = 64
EATER = (
    'exec -a {tag} perl -e \'$| = 1; my @kept; for (1 .. 4096) {{ push @kept, "x" x 4194304; '
    "select undef, undef, undef, 0.002 }}'"
)


@pytest.fixture(scope="module", params=BACKENDS)
def service(request: pytest.FixtureRequest) -> Iterator[WalledService]:
    with walled(request.param, memory=MEMORY, processes=PROCESSES) as started:
        yield started


async def test_a_fork_bomb_is_put_out_and_said_to_be_one(service: WalledService) -> None:
    async with service.client() as client:
        bombed = asyncio.create_task(run(client, "bomb() { bomb | bomb & }; bomb; sleep 30", timeout=60))
        beside = [await client.get("/v1/calls", params={"limit": 1}) for _ in range(20)]
        ended = await bombed
        after = await run(client, "echo well")

    assert (ended["status"], ended["error"]["code"]) == ("error", "ResourceLimit")
    assert {answer.status_code for answer in beside} == {200}
    assert after["result"]["structured"]["stdout"] == "well\n"


async def test_one_that_eats_memory_is_put_out(service: WalledService) -> None:
    tag = f"eater-one-{service.backend}"
    async with service.client() as client:
        ended = await run(client, EATER.format(tag=tag), timeout=60)

    assert (ended["status"], ended["error"]["code"]) == ("error", "ResourceLimit")
    assert alive(tag) == []


async def test_eight_that_eat_memory_together_are_put_out(service: WalledService) -> None:
    tag = f"eater-eight-{service.backend}"
    eight = f"for _ in 1 2 3 4 5 6 7 8; do ({EATER.format(tag=tag)}) & done; wait"
    async with service.client() as client:
        ended = await run(client, eight, timeout=60)

    assert (ended["status"], ended["error"]["code"]) == ("error", "ResourceLimit")
    assert alive(tag) == []


async def test_a_gigabyte_of_output_leaves_memory_as_it_was(service: WalledService) -> None:
    gib = 1024**3
    async with service.client() as client:
        await run(client, "head -c 200000000 /dev/zero | tr '\\0' x", timeout=120)
        before = memory_mb(service.pid)
        ended = await run(client, f"head -c {gib} /dev/zero | tr '\\0' x", timeout=120)
        kept = await client.get(f"/v1/calls/{ended['id']}/output", params={"offset": 0, "limit": 10})

    grown = memory_mb(service.pid, "VmHWM") - before
    print(f"\n{service.backend}: {grown:.0f} MB more while 1 GiB went through in {ended['duration_ms']:.0f} ms")  # noqa: T201
    assert ended["status"] == "completed"
    assert grown <= 64
    assert int(kept.headers["toolcrib-output-total"]) + int(kept.headers["toolcrib-output-dropped"]) == gib


async def test_a_file_that_grows_without_end_is_stopped(service: WalledService) -> None:
    async with service.client() as client:
        ended = await run(client, "ulimit -f; head -c 2000000000 /dev/zero > big; echo $?; rm -f big", timeout=120)

    lines = ended["result"]["structured"]["stdout"].splitlines()
    assert lines[0] == str(1024**3 // 1024)
    assert lines[-1] != "0"


async def test_what_answers_meanwhile_is_whole(service: WalledService) -> None:
    """Many at once, of every kind, none of them disturbed by another."""
    async with service.client() as client:
        calls = await asyncio.gather(*(run(client, f"echo {number}; exit {number % 3}") for number in range(24)))

    assert [call["result"]["structured"]["stdout"] for call in calls] == [f"{number}\n" for number in range(24)]
    assert [call["result"]["metadata"]["exit_code"] for call in calls] == [number % 3 for number in range(24)]
