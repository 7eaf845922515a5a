"""JSON Schemas of tools that come from outside, compiled once."""

from collections.abc import Callable
from typing import Any

from jsonschema.validators import Draft202012Validator  # type: ignore[import-untyped]

from app.core.errors import InvalidArgs


def parser(name: str, schema: dict[str, Any]) -> Callable[[Any], Any]:
    """What checks the arguments of this tool. A schema that is none is found out here."""
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)

    def parse(raw: Any) -> Any:
        mistakes = [f"`{error.json_path}`: {error.message}" for error in validator.iter_errors(raw)]
        if mistakes:
            raise InvalidArgs(f"{name} cannot take these arguments: {'; '.join(mistakes)}.")
        return raw

    return parse
