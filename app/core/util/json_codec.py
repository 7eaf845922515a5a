"""JSON as the service writes it: compact UTF-8, integers of any size; NaN and infinity are null."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

import orjson

Fragment = orjson.Fragment
Raw = dict[str, Any]
"""A JSON object of another system, passed through unchanged."""


def dumps(value: Any, *, sort: bool = False) -> bytes:
    """Encode a value. orjson stops at 64-bit integers and lone surrogates, so those few values take the slow way; a
    lone surrogate is replaced."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:
        plain = json.loads(json.dumps(value, default=_default), parse_constant=lambda name: None)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=sort)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _default(value: Any) -> Any:
    """What orjson knows by itself and `json` does not: fragments, dataclasses, enums, models."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return json.loads(orjson.dumps(value))
