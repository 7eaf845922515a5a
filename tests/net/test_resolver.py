"""A name becomes checked addresses, or a clear no."""

import socket
from ipaddress import ip_address

import pytest

from app.core.errors import CallError, DNSError, NetworkError
from app.net.resolver import Resolver, is_public


def answering(*addresses: str) -> Resolver:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return Resolver(resolve=resolve)


def test_an_address_that_is_not_the_internets_is_not_public(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:2::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::1",
        "2002:c0a8:101::1",
        "3fff::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ]
    for address in cases:
        with subtests.test(address=address):
            assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1", "64:ff9b::101:101"],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


async def test_of_a_mixed_answer_only_the_public_addresses_are_used() -> None:
    found = await answering("10.0.0.1", "93.184.216.34", "::1", "93.184.216.34", "fe80::1%eth0").find("a.example", 80)

    assert found == [ip_address("93.184.216.34")]


@pytest.mark.parametrize("host", ["a.example", "10.0.0.1", "::1"])
async def test_a_host_with_private_addresses_only_is_refused_and_the_setting_named(host: str) -> None:
    with pytest.raises(NetworkError, match="private_networks") as refused:
        await answering("10.0.0.1", "::1").find(host, 80)

    assert refused.value.as_dict()["retryable"] is False


async def test_the_operator_opens_a_network_and_no_more() -> None:
    resolver = Resolver(["10.1.0.0/16", "fd00::/8"])

    assert await resolver.find("10.1.2.3", 80) == [ip_address("10.1.2.3")]
    assert await resolver.find("fd00::1", 80) == [ip_address("fd00::1")]
    assert await resolver.find("::ffff:10.1.2.3", 80) == [ip_address("::ffff:10.1.2.3")]
    for closed in ("10.2.0.1", "fe80::1", "::ffff:10.2.0.1"):
        with pytest.raises(NetworkError):
            await resolver.find(closed, 80)


@pytest.mark.parametrize(
    ("number", "is_retryable"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True), (socket.EAI_FAIL, True)]
)
async def test_a_name_without_an_address_is_a_dns_error(number: int, is_retryable: bool) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror(number, "no")

    with pytest.raises(DNSError) as failed:
        await Resolver(resolve=resolve).find("a.example", 80)

    assert failed.value.retryable is is_retryable


async def test_no_answer_at_all_is_a_dns_error() -> None:
    with pytest.raises(DNSError):
        await answering().find("a.example", 80)


async def test_the_systems_resolver_is_asked_and_what_it_finds_is_checked() -> None:
    with pytest.raises(CallError, match="private_networks"):
        await Resolver().find("localhost", 80)

    assert ip_address("127.0.0.1") in await Resolver(["127.0.0.0/8", "::1/128"]).find("localhost", 80)
