"""Network policies: what one allows, and whether it holds all of a domain."""

import pytest

from app.core.network_policy import DomainSecret, NetworkPolicy, allow, includes, to_policy

LISTED = NetworkPolicy("allowlist", ("github.com", "*.example.org"))


def test_a_domain_holds_another_whole_or_not_at_all(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, bool]] = [
        ("a.example", "a.example", True),
        ("a.example", "A.Example.", True),
        ("a.example", "b.a.example", False),
        ("a.example", "*.a.example", False),
        ("*.a.example", "b.a.example", True),
        ("*.a.example", "c.b.a.example", True),
        ("*.a.example", "a.example", False),
        ("*.a.example", "*.a.example", True),
        ("*.a.example", "*.b.a.example", True),
        ("*.a.example", "*.example", False),
        ("*.a.example", "*.ba.example", False),
        ("any.a.example", "*.a.example", False),
    ]
    for wide, domain, is_included in cases:
        with subtests.test(wide=wide, domain=domain, is_included=is_included):
            assert includes(wide, domain) is is_included


@pytest.mark.parametrize(
    ("policy", "covered"),
    [
        (NetworkPolicy(), ["github.com", "*.github.com", "*.x.example.org", "evil.example"]),
        (NetworkPolicy("disabled"), []),
        (LISTED, ["github.com", "*.x.example.org"]),
    ],
)
def test_a_policy_covers_a_domain_when_it_allows_every_host_of_it(policy: NetworkPolicy, covered: list[str]) -> None:
    asked = ["github.com", "*.github.com", "*.x.example.org", "evil.example"]

    assert [domain for domain in asked if policy.covers(domain)] == covered


def test_a_host_is_allowed_by_all_policies_or_not() -> None:
    assert allow("x.example.org", [LISTED, None, NetworkPolicy()])
    assert not allow("x.example.org", [LISTED, NetworkPolicy("disabled")])
    assert not allow("evil.example", [None, LISTED])


def test_a_policy_comes_back_as_it_was_shown() -> None:
    policy = NetworkPolicy("allowlist", ("a.example",), (DomainSecret("a.example", "KEY"),))

    assert to_policy(policy.view()) == policy
    assert to_policy(NetworkPolicy("disabled").view()) == NetworkPolicy("disabled")
