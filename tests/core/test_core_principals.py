import base64
import hashlib
import re

import pytest

from app.core.principals import DEFAULT_SCOPES, UNBOUND, Bounds, Key, Scope, digest, make_key, new_token
from app.core.util.clocks import SystemClock
from app.core.util.ids import Ids, time_of


def key(*scopes: Scope) -> Key:
    return Key("key_1", "ada", "laptop", frozenset(scopes), digest("tk_x"), 0)


def test_a_token_is_256_random_bits_behind_a_prefix_scanners_can_find() -> None:
    tokens = {new_token() for _ in range(200)}

    assert len(tokens) == 200
    assert all(re.fullmatch(r"tk_[A-Za-z0-9_-]{43}", token) for token in tokens)
    assert all(len(base64.urlsafe_b64decode(token[3:] + "=")) == 32 for token in tokens)


def test_a_digest_is_the_tokens_sha256_whatever_bytes_a_header_brought() -> None:
    assert digest("tk_x") == hashlib.sha256(b"tk_x").hexdigest()
    assert digest("tk_\udce9") == hashlib.sha256(b"tk_\xe9").hexdigest()


@pytest.mark.parametrize("scope", Scope)
def test_a_key_may_do_what_its_scopes_say_and_an_admin_everything(scope: Scope) -> None:
    assert key(scope).may(scope)
    assert key(Scope.ADMIN).may(scope)
    assert not key(*set(Scope) - {scope, Scope.ADMIN}).may(scope)


def test_a_key_sees_its_own_principals_things_and_an_admin_everybodys() -> None:
    assert key(*set(Scope) - {Scope.ADMIN}).sees == "ada"
    assert key(Scope.ADMIN).sees is None


def test_the_default_scopes_run_and_read_calls() -> None:
    assert {"calls:run", "calls:read"} == DEFAULT_SCOPES


def test_a_made_key_holds_the_digest_of_its_token_and_never_the_token() -> None:
    made, token = make_key(Ids(SystemClock()), "ada", "laptop", [Scope.METRICS])

    assert made == Key(made.id, "ada", "laptop", frozenset({Scope.METRICS}), digest(token), time_of(made.id))
    assert made.id.startswith("key_")
    assert token not in repr(made)


def test_a_key_shows_neither_token_nor_digest() -> None:
    assert key(Scope.METRICS, Scope.CALLS_RUN).view() == {
        "id": "key_1",
        "principal": "ada",
        "name": "laptop",
        "scopes": ["calls:run", "metrics"],
        "bounds": UNBOUND.view(),
        "created_at": "1970-01-01T00:00:00.000000Z",
        "revoked_at": None,
    }


@pytest.mark.parametrize(
    ("folders", "root", "is_allowed"),
    [
        ((), "/anywhere", True),
        (("/srv",), "/srv", True),
        (("/srv",), "/srv/deep/er", True),
        (("/srv",), "/srv-not", False),
        (("/srv/deep",), "/srv", False),
        (("/",), "/anywhere", True),
        (("/else", "/srv"), "/srv/x", True),
    ],
)
def test_a_bound_key_has_workspaces_in_its_folders_only(folders: tuple[str, ...], root: str, is_allowed: bool) -> None:
    assert Bounds(workspaces=folders).allows_workspace(root) is is_allowed
