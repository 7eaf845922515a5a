"""API descriptions as text: JSON or YAML, parsed into JSON values only."""

import json
import re
from typing import Any

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 200
MAX_NODES = 1_000_000
"""Values after YAML aliases are expanded."""


def parse(text: str) -> dict[str, Any]:
    """The root object of a description; raises `ValueError` with a sentence."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"The description takes more than {MAX_BYTES // 1024 // 1024} MiB.")
    try:
        document = _parse_json(text) if text.lstrip("\ufeff \t\r\n").startswith("{") else _parse_yaml(text)
    except RecursionError:
        raise ValueError("The description is nested too deep.") from None
    if not isinstance(document, dict):
        raise ValueError("The description is not an object.")
    return document


def _parse_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text.lstrip("\ufeff"), parse_constant=refuse)
    except ValueError as broken:
        try:
            return _parse_yaml(text)  # YAML may start with a brace too
        except ValueError:
            raise ValueError(f"The description is not JSON: {broken}.") from None


def _parse_yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]

    loader = _loader(yaml)
    try:
        _check_depth(yaml, text, loader)
        return _JsonCopier().copy(yaml.load(text, Loader=loader), 0)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"The description is neither JSON nor YAML: {getattr(error, 'problem', '')}{line}.") from None


def _loader(yaml: Any) -> Any:
    """The safe loader with JSON's scalars only: no dates, no `yes` for true, no sexagesimal numbers."""
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {}})
    for tag, pattern, firsts in (
        ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
        ("int", r"[-+]?(?:0|[1-9][0-9]{0,400})", [*"-+0123456789"]),
        ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
        ("merge", r"<<", ["<"]),
    ):
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), firsts)
    return loader


def _check_depth(yaml: Any, text: str, loader: Any) -> None:
    """Before anything is built, as the builder recurses in C."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError("The description is nested too deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _JsonCopier:
    """Copies and counts what YAML built: nested aliases can expand to more than fits into memory."""

    def __init__(self) -> None:
        self._nodes = 0

    def copy(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError("The aliases of the description expand to too much, or it is nested too deep.")
        match value:
            case dict():
                return {_key(name): self.copy(inner, depth + 1) for name, inner in value.items()}
            case list():
                return [self.copy(inner, depth + 1) for inner in value]
            case None | bool() | int() | float() | str():
                return value
            case _:
                raise ValueError(f"The description has a {type(value).__name__}, which is not a JSON type.")


def _key(name: Any) -> str:
    match name:
        case str():
            return name
        case bool() | int() | float() | None:
            return json.dumps(name)
        case _:
            raise ValueError("The description has a key that is not a string.")
