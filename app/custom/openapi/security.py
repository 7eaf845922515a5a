"""What an API asks callers to show, as secrets that go along with requests."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from app.core.custom_tools import SecretHeader
from app.core.secrets import check_name

Into = Literal["header", "query", "cookie"]
Form = Literal["plain", "bearer", "basic"]
WORDS = {"secret", "in", "name", "form"}


class Credential(NamedTuple):
    """A secret and its place in a request."""

    into: Into
    name: str
    secret: SecretHeader


class Credentials:
    """Which secrets go with which operation.

    `auth` is one secret for all of them, `{secret, in?, name?, form?}`, or a secret's name for each security scheme
    of the document. Raises `ValueError` for what cannot be followed.
    """

    def __init__(self, auth: Mapping[str, Any] | None, document: dict[str, Any], schemes: dict[str, Any]) -> None:
        self._everywhere = document.get("security")
        self._one: Credential | None = None
        self._named: dict[str, Credential] = {}
        if auth and isinstance(auth.get("secret"), str) and "secret" not in schemes:
            self._one = _one(auth)
        elif auth:
            self._named = {name: _by_scheme(name, secret, schemes) for name, secret in auth.items()}

    def of(self, operation: dict[str, Any]) -> list[Credential]:
        """The secrets of one operation; raises `ValueError` when it needs one that nobody named."""
        own = operation.get("security")
        if own == [] or not (self._one or self._named):
            return []
        if self._one:
            return [self._one]
        ways = own or self._everywhere
        if not isinstance(ways, list) or not ways:  # nothing is said, so what the caller named is meant for all
            return list(self._named.values())
        for way in ways:
            if isinstance(way, dict) and all(name in self._named for name in way):
                return [self._named[name] for name in way]
        wanted = " or ".join(" and ".join(way) for way in ways if isinstance(way, dict))
        raise ValueError(f"it needs the security scheme {wanted}, for which `auth` names no secret")


def _one(auth: Mapping[str, Any]) -> Credential:
    if unknown := set(auth) - WORDS:
        raise ValueError(f"auth: {min(unknown)!r} is not known; it takes secret, in, name and form.")
    into, name = auth.get("in", "header"), auth.get("name", "Authorization")
    if into not in ("header", "query", "cookie"):
        raise ValueError("auth: `in` is header, query or cookie.")
    if into != "header" and "name" not in auth:
        raise ValueError(f"auth: a {into} needs a `name`.")
    usual = "bearer" if into == "header" and str(name).lower() == "authorization" else "plain"
    form = auth.get("form", usual)
    if form not in ("plain", "bearer", "basic"):
        raise ValueError("auth: `form` is plain, bearer or basic.")
    return _credential(into, name, auth["secret"], form)


def _by_scheme(name: str, secret: Any, schemes: dict[str, Any]) -> Credential:
    scheme = schemes.get(name)
    if not isinstance(scheme, dict):
        known = ", ".join(schemes) or "none"
        raise ValueError(f"auth: the description has no security scheme {name!r}; it has {known}.")
    if not isinstance(secret, str):
        raise ValueError(f"auth: {name!r} needs the name of a secret.")
    match scheme:
        case {"type": "apiKey", "in": "header" | "query" | "cookie" as into, "name": str(place)}:
            return _credential(into, place, secret, "plain")
        case {"type": "http", "scheme": str(way)} if way.lower() in ("basic", "bearer"):
            return _credential("header", "Authorization", secret, "basic" if way.lower() == "basic" else "bearer")
        case {"type": "basic"}:
            return _credential("header", "Authorization", secret, "basic")
        case {"type": "oauth2" | "openIdConnect"}:
            return _credential("header", "Authorization", secret, "bearer")
        case _:
            raise ValueError(f"auth: the security scheme {name!r} is of a kind that a secret alone cannot satisfy.")


def _credential(into: Into, name: Any, secret: str, form: Form) -> Credential:
    check_name(secret)
    return Credential(into, str(name), SecretHeader(secret=secret, form=form))
