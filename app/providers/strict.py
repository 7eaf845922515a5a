"""Strict: a schema as OpenAI's strict mode takes it."""

import copy
from typing import Any


class GivenUp(Exception):
    """Why a schema cannot be strict."""


def rewrite(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with every object closed and every property required, the optional ones nullable."""
    made = copy.deepcopy(schema)
    if "properties" not in made or made.get("additionalProperties", False) is not False:
        raise GivenUp("an object of it is open")
    needed = made.get("required", [])
    for name, member in made["properties"].items():
        if name not in needed and isinstance(member.get("type"), str):
            member["type"] = [member["type"], "null"]
            if "enum" in member:
                member["enum"].append(None)
    return made | {"required": list(made["properties"]), "additionalProperties": False}
