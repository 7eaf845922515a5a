"""The official conformance suites, run to their end and read."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.netns_servers import APART
from tests.conformance.paths import MODULES, NODE, ROOT, run

SUMMARY = re.compile(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """How a suite went: what it printed, and what each scenario's checks came to."""

    code: int
    output: str
    scenarios: list[str]
    warnings: list[str]


async def server_suite(release: str, url: str, folder: Path, *options: str | Path) -> Verdict:
    """Have a suite try a server. Its own answer counts also those failures as well that were foreseen."""
    results = folder / "results"
    suite = MODULES / f"conformance-{release}/dist/index.js"
    code, output = await run(NODE, suite, "server", "--url", url, "-o", results, *options)
    summary = output.partition("=== SUMMARY ===")[2]
    return Verdict(code, output, [name for name, _, _ in SUMMARY.findall(summary)], sorted(_warned(results)))


def _warned(results: Path) -> set[str]:
    """What a server should do and does not, as `scenario:check`."""
    found = set()
    for file in results.glob("server-*/checks.json"):
        scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", file.parent.name)
        checks = json.loads(file.read_text())
        found |= {f"{scenario}:{check['id']}" for check in checks if check["status"] == "WARNING"}
    return found


async def client_scenario(scenario: str, folder: Path, *options: str | Path) -> Verdict:
    """Have a suite look at Toolcrib as a client, where there is no network but loopback: its servers would be open to
    all that there are."""
    results = folder / "results"
    suite = MODULES / "conformance-next/dist/index.js"
    command = f"{sys.executable} -m tests.conformance.client_under_test"
    where = (sys.executable, "-m", "tests.conformance.loopback", NODE, suite)
    asked = ("client", "--command", command, "--scenario", scenario, "--timeout", "60000", "-o", results)
    code, output = await run(*APART, *where, *asked, *options, PYTHONPATH=str(ROOT))
    checks = [json.loads(file.read_text()) for file in results.glob("**/checks.json")]
    warned = sorted({check["id"] for found in checks for check in found if check["status"] == "WARNING"})
    return Verdict(code, output, [scenario] if checks else [], warned)
