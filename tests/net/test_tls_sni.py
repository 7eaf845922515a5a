"""Hellos of TLS: read from what real clients say, and from what nobody should."""

import asyncio
import ssl
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.net.egress.tunnel import NoClientHello, read_hello, server_name


def hello(name: str | None) -> bytes:
    """What OpenSSL says first."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


async def read(data: bytes) -> tuple[bytes, str | None]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await read_hello(reader)


@pytest.mark.parametrize("name", ["api.example", "xn--bcher-kva.example", None])
async def test_the_name_is_read_and_the_bytes_are_kept(name: str | None) -> None:
    said = hello(name)

    assert await read(said + b"more") == (said, name)


@pytest.mark.parametrize("cut", [1, 2, 4, 50])
async def test_a_hello_may_come_in_several_records(cut: int) -> None:
    said = hello("api.example")
    parts = [said[5 : 5 + cut], said[5 + cut :]]
    records = b"".join(said[:3] + len(part).to_bytes(2, "big") + part for part in parts)

    assert await read(records) == (records, "api.example")


async def test_a_hello_in_crumbs_or_of_great_size_is_none() -> None:
    said = hello("api.example")
    crumbs = b"".join(said[:3] + b"\x00\x01" + said[at : at + 1] for at in range(5, len(said)))
    great = b"\x16\x03\x01\x00\x04\x01\xff\xff\xff"
    other = b"\x16\x03\x01\x00\x04\x02\x00\x00\x00"

    for data in (crumbs, great, other, said[:-1], b"\x16\x03\x01\x00\x00" * 20, b"\x17" + said[1:]):
        with pytest.raises(NoClientHello):
            await read(data)


def name_list(*names: bytes, kind: bytes = b"\x00") -> bytes:
    listed = b"".join(kind + len(name).to_bytes(2, "big") + name for name in names)
    return len(listed).to_bytes(2, "big") + listed


def body(*extensions: tuple[int, bytes]) -> bytes:
    written = b"".join(kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for kind, data in extensions)
    return (
        b"\x03\x03"
        + bytes(32)
        + b"\x00"
        + b"\x00\x02\x13\x01"
        + b"\x01\x00"
        + len(written).to_bytes(2, "big")
        + written
    )


def test_one_name_at_most_is_said() -> None:
    assert server_name(body((0, name_list(b"a.example")))) == "a.example"
    assert server_name(body((10, b""))) is None
    for hostile in (
        body((0, name_list(b"a.example")), (0, name_list(b"b.example"))),
        body((0, name_list(b"a.example", b"b.example"))),
        body((0, name_list())),
        body((0, name_list(b"a.example", kind=b"\x01"))),
        body((0, name_list("ä.example".encode()))),
        body((0, name_list(b"a.example") + b"x")),
        body((0, b"")),
        body() + b"x",
    ):
        with pytest.raises(NoClientHello):
            server_name(hostile)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_hello_or_none(data: bytes) -> None:
    with suppress(NoClientHello):
        server_name(data)
