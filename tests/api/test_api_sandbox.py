"""What protects, over HTTP: all of it for admins, no word of this machine for others."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.sandbox import Backend, BackendTrial, MachineInfo, Network, Probe, SandboxReport
from app.core.sessions import Profile
from tests.api.test_api_access import new_key
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

REPORT = SandboxReport(
    backend=Backend.LANDLOCK,
    requested="auto",
    reason="The backend landlock passed its self-test. The backend bwrap does not work here: no.",
    profile=Profile.WORKSPACE_WRITE,
    network=Network.NONE,
    uid=61_100,
    limits={"memory": 1},
    unprotected=("Something.",),
    trials=(
        BackendTrial(Backend.BWRAP, "The backend bwrap does not work here: no.", said="bwrap: /secret/path: no"),
        BackendTrial(Backend.LANDLOCK, None, (Probe("tcp", True, "No TCP connection can be made."),), seconds=0.0123),
    ),
    machine=MachineInfo(
        landlock_abi=7, has_seccomp=True, has_user_namespaces=False, bwrap_path="/usr/bin/bwrap", bwrap_version="0.8"
    ),
    checked_at=1_700_000_000_000_000,
)
SUMMARY = {
    "backend": "landlock",
    "reason": REPORT.reason,
    "profile": "workspace-write",
    "network": "none",
    "degraded": False,
    "unprotected": ["Something."],
    "checked_at": "2023-11-14T22:13:20.000000Z",
}


class Inspected:
    """An inspector that has come to its conclusion."""

    def __init__(self, report: SandboxReport | None) -> None:
        self.report = report
        self.renewals = 0

    async def known(self) -> SandboxReport:
        return self.report or REPORT

    async def renew(self) -> SandboxReport:
        self.renewals += 1
        return REPORT


@pytest.fixture
async def walled(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    """A service that looks at its walls."""
    service = RunningService(data_dir, toys, sandbox={"backend": "landlock"})
    await service.open()
    yield service
    await service.close()


async def test_a_real_self_test_is_told_with_every_probe(walled: RunningService) -> None:
    first = (await walled.client.get("/v1/sandbox")).json()
    again = (await walled.client.get("/v1/sandbox")).json()
    fresh = (await walled.client.get("/v1/sandbox?fresh=true")).json()

    assert (first["backend"], first["requested"]) == ("landlock", "landlock")
    [tried] = first["tried"]
    assert {probe["name"]: probe["detail"] for probe in tried["probes"] if not probe["ok"]} == {}
    assert len(tried["probes"]) == 12
    assert again["checked_at"] == first["checked_at"] < fresh["checked_at"]


async def test_admins_see_all_of_it_and_others_nothing_of_this_machine(service: RunningService) -> None:
    service.services.sandbox = Inspected(REPORT)
    reader = await new_key(service, "ann", ["calls:read"])

    whole = (await service.client.get("/v1/sandbox")).json()
    async with service.client_of(reader["token"]) as client:
        part = (await client.get("/v1/sandbox")).json()

    assert part == SUMMARY
    assert whole == SUMMARY | {
        "requested": "auto",
        "uid": 61_100,
        "limits": {"memory": 1},
        "tried": [
            {
                "backend": "bwrap",
                "ok": False,
                "reason": "The backend bwrap does not work here: no.",
                "said": "bwrap: /secret/path: no",
                "probes": [],
                "duration_ms": 0.0,
            },
            {
                "backend": "landlock",
                "ok": True,
                "reason": None,
                "said": "",
                "probes": [{"name": "tcp", "ok": True, "detail": "No TCP connection can be made."}],
                "duration_ms": 12.3,
            },
        ],
        "landlock_abi": 7,
        "seccomp": True,
        "user_namespaces": False,
        "bwrap": {"path": "/usr/bin/bwrap", "version": "0.8"},
    }


@pytest.mark.parametrize(("scopes", "status"), [(["calls:read"], 200), (["calls:run"], 403), (["metrics"], 403)])
async def test_who_may_read_calls_may_know(service: RunningService, scopes: list[str], status: int) -> None:
    key = await new_key(service, "ann", scopes)

    async with service.client_of(key["token"]) as client:
        assert (await client.get("/v1/sandbox")).status_code == status


async def test_only_an_admin_has_it_tried_again(service: RunningService) -> None:
    inspector = service.services.sandbox = Inspected(REPORT)
    reader = await new_key(service, "ann", ["calls:read"])

    async with service.client_of(reader["token"]) as client:
        refused = await client.get("/v1/sandbox?fresh=true")
    allowed = await service.client.get("/v1/sandbox?fresh=true")

    assert (refused.status_code, allowed.status_code, inspector.renewals) == (403, 200, 1)


@pytest.mark.parametrize(
    ("report", "tier"), [(REPORT, "landlock"), (replace(REPORT, backend=None), "refused"), (None, None)]
)
async def test_metrics_tell_the_tier(service: RunningService, report: SandboxReport | None, tier: str | None) -> None:
    service.services.sandbox = Inspected(report)

    text = (await service.client.get("/metrics")).text

    lines = [line for line in text.splitlines() if line.startswith("toolcrib_sandbox_tier{")]
    found = {line.partition('"')[2].partition('"')[0]: float(line.split()[-1]) for line in lines}
    assert found == {name: float(name == tier) for name in ("bwrap", "landlock", "none", "refused")}
