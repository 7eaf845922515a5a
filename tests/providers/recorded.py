"""The recorded cases, by the format they are of."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.providers.dialects import Dialect, ExportOptions, Strictness

CASES = json.loads((Path(__file__).parent.parent / "scenarios" / "providers.json").read_text())["cases"]


def recorded(kind: str, *formats: str) -> pytest.MarkDecorator:
    """Runs a test with each case of a kind that is of one of these formats."""
    found = [case for case in CASES if case["kind"] == kind and case["format"] in formats]
    assert found, f"there are no cases of {formats}"
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


def options_of(case: dict[str, Any], dialect: Dialect) -> ExportOptions:
    """A case's options in our words."""
    asked = case["input"].get("options", {})
    strict: Strictness = "on" if asked.get("strict") else "auto"
    return ExportOptions(
        strict=strict,
        cache="ephemeral" if asked.get("cache") else None,
        defers=(lambda name: True) if asked.get("defer") else None,
        quirks=dialect.quirks,
    )
