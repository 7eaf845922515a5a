"""Security schemes of an API description, satisfied by secrets sent with requests."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from app.core.custom_tools import SecretHeader
from app.core.secrets import check_name

Into = Literal["header", "query", "cookie"]
Form = Literal["plain", "bearer", "basic"]
AUTH_FIELDS = {"secret", "in", "name", "form"}


class Credential(NamedTuple):
    """A secret and its place in a request."""

    into: Into
    name: str
    secret: SecretHeader


class Credentials:
    """Which secrets are sent with which operation.

    `auth` is one secret for all of them, `{secret, in?, name?, form?}`, or a secret's name for each security scheme
    of the document. Raises `ValueError` for an invalid one.
    """

    def __init__(self, auth: Mapping[str, Any] | None, document: dict[str, Any], schemes: dict[str, Any]) -> None:
        self._document_security = document.get("security")
        self._single: Credential | None = None
        self._by_scheme: dict[str, Credential] = {}
        if auth and isinstance(auth.get("secret"), str) and "secret" not in schemes:
            self._single = _single_credential(auth)
        elif auth:
            self._by_scheme = {name: _scheme_credential(name, secret, schemes) for name, secret in auth.items()}

    def of(self, operation: dict[str, Any]) -> list[Credential]:
        """The secrets of one operation; raises `ValueError` when `auth` does not name one that it needs."""
        own = operation.get("security")
        if own == [] or not (self._single or self._by_scheme):
            return []
        if self._single:
            return [self._single]
        alternatives = own or self._document_security
        if not isinstance(alternatives, list) or not alternatives:  # not declared, so `auth` applies to all
            return list(self._by_scheme.values())
        for schemes in alternatives:
            if isinstance(schemes, dict) and all(name in self._by_scheme for name in schemes):
                return [self._by_scheme[name] for name in schemes]
        needed = " or ".join(" and ".join(schemes) for schemes in alternatives if isinstance(schemes, dict))
        raise ValueError(f"it needs the security scheme {needed}, for which `auth` names no secret")


def _single_credential(auth: Mapping[str, Any]) -> Credential:
    if unknown := set(auth) - AUTH_FIELDS:
        raise ValueError(f"auth: {min(unknown)!r} is not known; it takes secret, in, name and form.")
    into, name = auth.get("in", "header"), auth.get("name", "Authorization")
    if into not in ("header", "query", "cookie"):
        raise ValueError("auth: `in` is header, query or cookie.")
    if into != "header" and "name" not in auth:
        raise ValueError(f"auth: a {into} needs a `name`.")
    default = "bearer" if into == "header" and str(name).lower() == "authorization" else "plain"
    form = auth.get("form", default)
    if form not in ("plain", "bearer", "basic"):
        raise ValueError("auth: `form` is plain, bearer or basic.")
    return _credential(into, name, auth["secret"], form)


def _scheme_credential(name: str, secret: Any, schemes: dict[str, Any]) -> Credential:
    scheme = schemes.get(name)
    if not isinstance(scheme, dict):
        known = ", ".join(schemes) or "none"
        raise ValueError(f"auth: the description has no security scheme {name!r}; it has {known}.")
    if not isinstance(secret, str):
        raise ValueError(f"auth: {name!r} needs the name of a secret.")
    match scheme:
        case {"type": "apiKey", "in": "header" | "query" | "cookie" as into, "name": str(place)}:
            return _credential(into, place, secret, "plain")
        case {"type": "http", "scheme": str(kind)} if kind.lower() in ("basic", "bearer"):
            return _credential("header", "Authorization", secret, "basic" if kind.lower() == "basic" else "bearer")
        case {"type": "basic"}:
            return _credential("header", "Authorization", secret, "basic")
        case {"type": "oauth2" | "openIdConnect"}:
            return _credential("header", "Authorization", secret, "bearer")
        case _:
            raise ValueError(f"auth: the security scheme {name!r} needs more than a secret.")


def _credential(into: Into, name: Any, secret: str, form: Form) -> Credential:
    check_name(secret)
    return Credential(into, str(name), SecretHeader(secret=secret, form=form))
