"""URLs are read strictly, so that the host that was judged is the host that is connected to."""

import pytest

from app.core.util.urls import InvalidUrl, ParsedUrl, read_url


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("https://api.example.com", ParsedUrl("https", "api.example.com", 443, "/")),
        ("HTTP://API.Example.COM:8080/a?b=c#d", ParsedUrl("http", "api.example.com", 8080, "/a?b=c")),
        ("https://example.com.?q", ParsedUrl("https", "example.com", 443, "/?q")),
        ("https://bücher.example/ü", ParsedUrl("https", "xn--bcher-kva.example", 443, "/%C3%BC")),
        ("http://127.0.0.1:80/", ParsedUrl("http", "127.0.0.1", 80, "/")),
        ("http://[2001:DB8:0::1]:8443/x", ParsedUrl("http", "2001:db8::1", 8443, "/x")),
        ("http://my_service/a%2Fb?x=[1]", ParsedUrl("http", "my_service", 80, "/a%2Fb?x=%5B1%5D")),
    ],
)
def test_a_url_is_read_into_its_parts(url: str, where: ParsedUrl) -> None:
    assert read_url(url) == where


@pytest.mark.parametrize(
    ("where", "authority"),
    [
        (ParsedUrl("https", "a.example", 443, "/"), "a.example"),
        (ParsedUrl("https", "a.example", 80, "/"), "a.example:80"),
        (ParsedUrl("http", "::1", 80, "/"), "[::1]"),
        (ParsedUrl("http", "::1", 81, "/"), "[::1]:81"),
    ],
)
def test_a_host_is_named_with_its_port_only_when_that_is_unusual(where: ParsedUrl, authority: str) -> None:
    assert where.authority == authority


def test_what_could_be_read_in_two_ways_is_no_url(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "",
        "example.com",
        "//example.com",
        "ftp://example.com",
        "file:///etc/passwd",
        "https:example.com",
        "https://",
        "https://:80/",
        "https://user@example.com/",
        "https://user:password@example.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:x/",
        "https://example.com\\@evil.example/",
        "https://exa mple.com/",
        "https://example.com/\r\nX: y",
        "https://example.com/\ud800",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://1.2.3.4.5/",
        "https://256.1.1.1/",
        "https://%31%32%37.0.0.1/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[::1/",
        "https://::1/",
        "https://a..b/",
        "https://-a.example/",
        f"https://{'a' * 64}.example/",
        "https://" + ".".join(["a" * 60] * 5),
        "https://exa♥mple.com/",
    ]
    for url in cases:
        with subtests.test(url=url), pytest.raises(InvalidUrl):
            read_url(url)
