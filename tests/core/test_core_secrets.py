import dataclasses

import pytest

from app.core.secrets import (
    GLOBAL_PRINCIPAL,
    InvalidSecret,
    Secret,
    SecretConfigured,
    check_name,
    check_value,
    read_domains,
)

LONGEST = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])


def test_a_view_tells_all_but_the_owner() -> None:
    own = Secret("ada", "TOKEN", ("a.example",), 0, 1_500_000)

    assert own.view() == {
        "name": "TOKEN",
        "global": False,
        "domains": ["a.example"],
        "source": "store",
        "created_at": "1970-01-01T00:00:00.000000Z",
        "updated_at": "1970-01-01T00:00:01.500000Z",
    }
    assert dataclasses.replace(own, principal=GLOBAL_PRINCIPAL).view() == own.view() | {"global": True}


def test_a_configured_secret_has_no_times() -> None:
    view = Secret(GLOBAL_PRINCIPAL, "TOKEN", (), None, None, "config").view()

    assert (view["source"], view["created_at"], view["updated_at"]) == ("config", None, None)


def test_a_secret_has_no_place_for_its_value() -> None:
    assert {field.name for field in dataclasses.fields(Secret)} == {
        *("principal", "name", "domains", "created_at", "updated_at", "source"),
    }


@pytest.mark.parametrize("name", ["T", "TOKEN", "mail.token", "a-b_c.9", "x" * 64])
def test_a_name_is_taken(name: str) -> None:
    check_name(name)


def test_a_name_is_refused(subtests: pytest.Subtests) -> None:
    for name in ["", "9a", "_a", ".", "..", "a b", "a/b", "a\n", "é", "x" * 65, "*"]:
        with subtests.test(name=name), pytest.raises(InvalidSecret, match=r"^name: "):
            check_name(name)


@pytest.mark.parametrize("value", ["123456", " 2345 ", "line\nline\n", "\N{GRINNING FACE}" * 6, "x" * 65_536])
def test_a_value_is_taken(value: str) -> None:
    check_value(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "at least 6 characters"),
        ("12345", "cannot be redacted without wrecking every text"),
        ("x" * 65_537, "at most 65,536 characters"),
        ("      \n", "blanks alone"),
        ("canary\0", "without NUL"),
        ("canary\udc80", "text without"),
    ],
)
def test_a_value_is_refused_without_being_told(value: str, reason: str) -> None:
    with pytest.raises(InvalidSecret, match=reason) as refused:
        check_value(value)

    assert "canary" not in str(refused.value)


def test_a_domain_is_kept_as_it_will_be_compared(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM", "api.example.com"),
        ("*.example.com", "*.example.com"),
        ("localhost", "localhost"),
        ("10.0.0.1", "10.0.0.1"),
        ("r3---sn.example", "r3---sn.example"),
        ("Bücher.example", "xn--bcher-kva.example"),
        ("*.bu\u0308cher.example", "*.xn--bcher-kva.example"),
        ("faß.example", "xn--fa-hia.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        (LONGEST, LONGEST),
    ]
    for given, kept in cases:
        with subtests.test(given=given, kept=kept):
            assert read_domains([given]) == (kept,)


def test_what_is_no_domain_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        *("", "*", "*.", ".", "a.", ".a", "a..b", "*.*.a", "a.*.b", "*a.b"),
        *("https://a.example", "a.example:443", "a.example/path", "me@a.example", "[::1]", "::1", "a_b.example"),
        *(
            "-a.example",
            "a-.example",
            "a b",
            "a\n",
            "x" * 64,
            LONGEST + "d",
            "é" * 300,
            "a\u2024b",
            "\ud800",
            "💥.example",
        ),
    ]
    for given in cases:
        with subtests.test(given=given), pytest.raises(InvalidSecret, match=r"^domains: .* is not a host name"):
            read_domains([given])


def test_a_domain_counts_once_and_there_are_at_most_32() -> None:
    assert read_domains(["a.example", "A.example", "b.example"]) == ("a.example", "b.example")
    assert len(read_domains(f"{n}.example" for n in range(32))) == 32
    with pytest.raises(InvalidSecret, match="at most 32"):
        read_domains(f"{n}.example" for n in range(33))


def test_a_configured_secret_is_changed_where_it_was_said() -> None:
    assert str(SecretConfigured("TOKEN")) == "The secret TOKEN comes from the configuration; change it there."
