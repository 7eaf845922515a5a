"""Whether a value is what a package's TypedDicts say: nothing missing, nothing they do not know."""

import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ForwardRef, Literal, NotRequired, Required, Union, get_args, get_origin

import typing_extensions as te

LISTS = (list, Iterable, Sequence, typing.Iterable)
ALIASES = (te.TypeAliasType, getattr(typing, "TypeAliasType", te.TypeAliasType))


class Misfit(AssertionError):
    """What is wrong, and where."""


def require(kind: Any, value: Any, where: str = "$") -> None:
    """Raises `Misfit` when the value is not of the kind. A TypedDict takes no key that it does not name."""
    kind = _bare(kind)
    origin = get_origin(kind)
    if kind is Any or kind is object or isinstance(kind, typing.TypeVar):
        return
    if te.is_typeddict(kind) or typing.is_typeddict(kind):
        _require_keys(kind, value, where)
    elif origin in (Union, types.UnionType):
        _require_one(get_args(kind), value, where)
    elif origin is Literal:
        _demand(value in get_args(kind), f"{value!r} is none of {get_args(kind)}", where)
    elif origin in LISTS or kind is list:
        _demand(isinstance(value, list), f"{value!r} is no list", where)
        for number, item in enumerate(value):
            require(get_args(kind)[0] if get_args(kind) else Any, item, f"{where}[{number}]")
    elif origin in (dict, Mapping) or kind is dict:
        _demand(isinstance(value, dict), f"{value!r} is no object", where)
        for name, item in value.items():
            require(get_args(kind)[1] if get_args(kind) else Any, item, f"{where}.{name}")
    else:
        _require_plain(kind, value, where)


def _require_plain(kind: Any, value: Any, where: str) -> None:
    if kind is None or kind is type(None):
        _demand(value is None, f"{value!r} is not null", where)
    elif kind is float:
        _demand(isinstance(value, int | float) and not isinstance(value, bool), f"{value!r} is no number", where)
    elif isinstance(kind, type):
        is_fit = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        _demand(is_fit, f"{value!r} is no {kind.__name__}", where)
    else:
        raise TypeError(f"{kind!r} at {where} is a kind this does not know")


def _bare(kind: Any) -> Any:
    while True:
        origin = get_origin(kind)
        if origin in (Annotated, Required, NotRequired, te.Required, te.NotRequired, te.ReadOnly):
            kind = get_args(kind)[0]
        elif isinstance(kind, ALIASES):
            kind = kind.__value__
        elif isinstance(origin, ALIASES):
            kind = origin.__value__[get_args(kind)]
        else:
            return kind


def _require_keys(kind: Any, value: Any, where: str) -> None:
    _demand(isinstance(value, dict), f"{value!r} is no object", where)
    hints = te.get_type_hints(kind, include_extras=True)
    for name in value:
        _demand(name in hints, f"the key {name!r} is not known to {kind.__name__}", where)
    for name, hint in hints.items():
        if name in value:
            require(hint, value[name], f"{where}.{name}")
        else:
            _demand(not _is_required(kind, name, hint), f"the key {name!r} of {kind.__name__} is missing", where)


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """A class that postpones its annotations tells wrong which keys it needs, so the hint itself counts first."""
    origin = get_origin(hint)
    if origin in (Required, te.Required):
        return True
    if origin in (NotRequired, te.NotRequired):
        return False
    declaring = next((base for base in _lineage(kind) if name in inspect.get_annotations(base)), kind)
    return bool(declaring.__total__) and not isinstance(hint, ForwardRef)


def _lineage(kind: Any) -> list[Any]:
    found = [kind]
    for base in getattr(kind, "__orig_bases__", ()):
        if te.is_typeddict(base) or typing.is_typeddict(base):
            found += _lineage(base)
    return found


def _require_one(kinds: Iterable[Any], value: Any, where: str) -> None:
    wrong = []
    for kind in kinds:
        try:
            require(kind, value, where)
        except Misfit as misfit:
            wrong.append(str(misfit))
        else:
            return
    raise Misfit(f"{where}: fits none: " + " | ".join(wrong))


def _demand(is_fit: bool, otherwise: str, where: str) -> None:
    if not is_fit:
        raise Misfit(f"{where}: {otherwise}")
