"""The fixture and the npm packages, as servers of a service."""

import sys
from pathlib import Path
from typing import Any

from tests.conformance.paths import FIXTURE, MODULES, NODE, ROOT
from tests.support.mcp_service import ALLOW_MCP
from tests.support.services import RunningService

ALLOW_ALL = ALLOW_MCP | {"permission": "*"}


def fixture(era: str = "stdio", **more: Any) -> dict[str, Any]:
    """How the fixture is started."""
    return {"command": sys.executable, "args": ["-m", FIXTURE, era], "cwd": str(ROOT)} | more


def package(name: str, *args: str, **more: Any) -> dict[str, Any]:
    """How a server of the registry is started."""
    script = MODULES / f"@modelcontextprotocol/server-{name}/dist/index.js"
    return {"command": str(NODE), "args": [str(script), *args]} | more


def workspace_of(service: RunningService) -> Path:
    return service.data_dir / "workspace"
