"""The official conformance suite looks at Toolcrib as a client of its servers: calls, questions, headers, sign-ins."""

import re
from pathlib import Path

import pytest

from tests.conformance.netns_servers import needs_island
from tests.conformance.paths import MODULES, NODE, conformance, run
from tests.conformance.suites import client_scenario

pytestmark = [*conformance, needs_island]

OLD, NEW = "2025-11-25", "2026-07-28"
BOTH = ("tools_call", "json-schema-2020-12-preservation")
OLDER = ("initialize", "elicitation-sep1034-client-defaults", "sse-retry")
NEWER = (
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
)
SIGNING_IN = (
    *("metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "pre-registration"),
    *("scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined"),
    *("scope-step-up", "scope-retry-limit"),
    *("token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none"),
)
SIGNING_IN_NEWER = (
    *("resource-mismatch", "offline-access-scope", "offline-access-not-supported", "authorization-server-migration"),
    *("iss-supported", "iss-not-advertised", "iss-supported-missing", "iss-wrong-issuer", "iss-unexpected"),
    *("iss-normalized", "metadata-issuer-mismatch"),
)
LEFT_OUT = {
    "auth/2025-03-26-oauth-endpoint-fallback": "servers that do not say where one signs in",
    "auth/client-credentials-jwt": "proving who we are with a signed token",
    "auth/enterprise-managed-authorization": "an extension",
    "auth/dpop": "an extension",
    "auth/dpop-nonce": "an extension",
    "auth/wif-jwt-bearer": "an extension",
    "sep-2640-client-no-prefetch": "an extension",
    "sep-2640-client-verify-digest": "an extension",
    "sep-2640-client-verify-size": "an extension",
    "sep-2640-client-verify-frontmatter": "an extension",
}
"""What Toolcrib does not do."""

TRIED = [
    *((name, OLD) for name in (*BOTH, *OLDER)),
    *((name, NEW) for name in (*BOTH, *NEWER)),
    *((f"auth/{name}", OLD) for name in SIGNING_IN),
    *((f"auth/{name}", NEW) for name in SIGNING_IN_NEWER),
    ("auth/2025-03-26-oauth-metadata-backcompat", "2025-03-26"),
    ("auth/client-credentials-basic", None),
]


@pytest.mark.parametrize(("scenario", "version"), TRIED)
async def test_toolcrib_is_the_client_it_should_be(tmp_path: Path, scenario: str, version: str | None) -> None:
    verdict = await client_scenario(scenario, tmp_path, *(("--spec-version", version) if version else ()))

    assert verdict.code == 0, verdict.output
    assert (verdict.scenarios, verdict.warnings) == ([scenario], []), verdict.output


async def test_all_that_the_suite_has_for_clients_is_tried_or_left_out_by_name() -> None:
    _, listed = await run(NODE, MODULES / "conformance-next/dist/index.js", "list", "--client")

    assert set(re.findall(r"^  - (\S+)", listed, re.MULTILINE)) == {name for name, _ in TRIED} | LEFT_OUT.keys()
