"""JSON as the house writes it: compact UTF-8, no NaN, integers of any size."""

import json
from typing import Any

import orjson

Fragment = orjson.Fragment


def dumps(value: Any, *, sort: bool = False) -> bytes:
    """Encode a value. orjson stops at 64-bit integers, so those few values take the slow way."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort, default=_default
        )
        return text.encode()


def _default(value: Any) -> Any:
    """What orjson knows by itself and `json` does not: fragments, dataclasses, enums, models."""
    if isinstance(value, Fragment):
        return json.loads(value.contents)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return json.loads(orjson.dumps(value))
