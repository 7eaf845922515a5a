"""Strict JSON: what a parser should not even see is found first, in linear time, and never by mistake."""

import asyncio
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.http import body as json_body
from app.api.http.body import JSON, MAX_DEPTH, MAX_DIGITS, MAX_VALUES, excess, parse
from app.api.http.problems import Problem
from tests.support.services import RunningService

SIZE = 8 * 1024 * 1024
DEEP = "The body is nested deeper than 64 levels."
LONG = "The body holds a number of more than 1000 digits."
MANY_VALUES = "The body holds more than 250000 values."


def nested(levels: int, inner: bytes = b"") -> bytes:
    """Lists and objects in turn."""
    opening, closing = b"", b""
    for level in range(levels):
        opening += b'{"a":' if level % 2 else b"["
        closing = (b"}" if level % 2 else b"]") + closing
    return opening + (inner or b"0") + closing


def sentence(body: bytes) -> str:
    with pytest.raises(Problem) as raised:
        parse(body, JSON)
    assert (raised.value.status, raised.value.code) == (400, "InvalidJson")
    return raised.value.detail


def test_what_is_within_the_limits_is_read_as_it_is(subtests: pytest.Subtests) -> None:
    cases: list[bytes] = [
        nested(MAX_DEPTH),
        b"9" * MAX_DIGITS,
        b"-" + b"9" * MAX_DIGITS + b"." + b"0" * MAX_DIGITS,
        b'"' + b"[" * 1000 + b"9" * 5000 + b'"',
        b'["' + b'\\"' + b"[" * 100 + b"9" * 1001 + b'"]',
        b'["\\\\", "' + b"{" * 100 + b'\\\\\\"' + b"9" * 2000 + b'"]',
        b'{"' + b"[" * 65 + b'": 1}',
        b"[" + b",".join([b"[]"] * 10_000) + b"]",
        b"[" + b",".join([b"{}"] * 10_000) + b"]",
        b'["' + b"\\u005b" * 100 + b'", "x' + b'" , "' * 100_000 + b'"]',
        b"[" + nested(MAX_DEPTH - 1) + b"," + nested(MAX_DEPTH - 1) + b"]",
        b"[0" + b",0" * (MAX_VALUES - 1) + b"]",
        b'["' + b",[" * MAX_VALUES + b'"]',
        ("[" + json.dumps("ä漢😀" * 50_000) + "]").encode(),
    ]
    for body in cases:
        with subtests.test(body=body):
            assert excess(body) is None
            if not re.search(rb"\d{1000}\.", body):
                assert parse(body, JSON) == json.loads(body)


def test_what_is_beyond_the_limits_is_refused_by_name(subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, str]] = [
        (nested(MAX_DEPTH + 1), DEEP),
        (b"[" * 200_000 + b"]" * 200_000, DEEP),
        (b"[" * 200_001, DEEP),
        (b'{"a":' * 200_000, DEEP),
        (b'["' + b"x" * 100_000 + b'",' + nested(MAX_DEPTH) + b"]", DEEP),
        (b'["\\\\",' + nested(MAX_DEPTH) + b"]", DEEP),
        (b'["\\"",' + nested(MAX_DEPTH) + b"]", DEEP),
        (b"[" + b"[]," * 100_000 + nested(MAX_DEPTH) + b"]", DEEP),
        (b"9" * (MAX_DIGITS + 1), LONG),
        (b"[-0." + b"1" * 5000 + b"]", LONG),
        (b"[1e" + b"1" * 5000 + b"]", LONG),
        (b'{"a":"9","b":' + b"9" * 1_000_000 + b"}", LONG),
        (b'["' + b"9" * 65_000 + b'",' + b"9" * 2000 + b"]", LONG),
        (b"[0" + b",0" * MAX_VALUES + b"]", MANY_VALUES),
        (b"[[]" + b",[]" * (MAX_VALUES // 2) + b"]", MANY_VALUES),
        (b'{"a":0' + b',"a":0' * MAX_VALUES + b"}", MANY_VALUES),
    ]
    for body, why in cases:
        with subtests.test(body=body, why=why):
            assert sentence(body) == why


def test_what_is_no_json_is_refused_with_or_without_the_scan(subtests: pytest.Subtests) -> None:
    bodys: list[bytes] = [
        *(b"NaN", b"[Infinity]", b"-Infinity", b'{"a":NaN}', b"[1e999]"),
        *(b'"\\ud800"', b'"\\udfff"', b'["\\ud83d\\u0041"]', b'{"\\udc00":1}', b'"\\uD800\\uD800"'),
        *(b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xc3"', b"\xef\xbb\xbf{}"),
        *(b"", b"[", b"[1,]", b"01", b"1 2", b"[1]\x00", b'"\x00"', b"{'a':1}", b"]" * 100 + b"[" * 100),
    ]
    for body in bodys:
        for padding in [b"", b" " * 2000 + b"[" * 65]:
            with subtests.test(body=body, padding=padding):
                assert sentence(body + b" " * len(padding)).startswith("The body ")
                if padding:
                    body = b'["' + padding + b'",' + body + b"]"
                    assert excess(body) is None
                    assert sentence(body).startswith("The body ")


def test_of_two_equal_keys_the_last_wins() -> None:
    assert parse(b'{"a":1,"b":2,"a":3}', JSON) == {"a": 3, "b": 2}


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{}0123456789é😀', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\[{', max_size=4), inner, max_size=4),
    max_leaves=30,
)


@given(value=values, is_escaped=st.booleans(), piece=st.integers(1, 64))
def test_the_scan_counts_what_the_parser_would_build(value: Any, is_escaped: bool, piece: int) -> None:
    body = json.dumps(value, ensure_ascii=is_escaped).encode()
    bare = b"".join(outside(body, piece))

    assert json.loads(body) == value
    assert bare.count(b"[") == count(value, list)
    assert bare.count(b"{") == count(value, dict)


def outside(body: bytes, piece: int) -> list[bytes]:
    """As it is cut into pieces of this size."""
    was, json_body._CHUNK_BYTES = json_body._CHUNK_BYTES, piece
    try:
        return list(json_body._outside_strings(body))
    finally:
        json_body._CHUNK_BYTES = was


def count(value: Any, kind: type) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return isinstance(value, kind) + sum(count(item, kind) for item in inner)


@pytest.mark.parametrize("piece", [1, 7, 64 * 1024])
def test_depth_is_the_same_however_it_is_cut(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "_CHUNK_BYTES", piece)
    rng = random.Random(7)
    for _ in range(50):
        levels = rng.randint(55, 75)
        body = b"[" + b"[{}]," * rng.randint(0, 60) + nested(levels - 1) + b"]"
        assert (excess(body) == DEEP) == (levels > MAX_DEPTH)


WORST = {
    "empty strings": b'"",',
    "escaped quotes": b'\\"',
    "backslashes": b"\\\\",
    "a string that never ends": b'a\\"',
    "lists": b"[],",
    "numbers just long enough": b"9" * MAX_DIGITS + b",",
    "numbers that may be infinite": b"9" * 308 + b",",
    "exponents": b"1e1,",
    "exponents in one": b"e1",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", WORST.values(), ids=WORST)
@pytest.mark.parametrize("begin", [b"", b"[", b'["'], ids=["bare", "in a list", "in a string"])
async def test_the_worst_bodies_hold_nobody_up(piece: bytes, begin: bytes) -> None:
    body = begin + piece * (SIZE // len(piece))

    async with asyncio.timeout(30):
        await asyncio.to_thread(refused, body + b"[" * 65)
        await asyncio.to_thread(refused, body)


def refused(body: bytes) -> None:
    with pytest.raises(Problem):
        parse(body, JSON)


async def test_every_door_is_as_strict(service: RunningService) -> None:
    deep, long = nested(MAX_DEPTH + 1), b"9" * (MAX_DIGITS + 1)
    for value, why in ((deep, DEEP), (long, LONG), (b"NaN", "The body is not JSON"), (b'"\\ud800"', "The body is not")):
        for path, content in [
            ("/v1/calls", b'{"tool":"echo","arguments":{"text":' + value + b"}}"),
            ("/v1/calls/batch", b'{"calls":[{"tool":"echo","arguments":{"text":' + value + b"}}]}"),
            ("/v1/keys", b'{"principal":' + value + b"}"),
            ("/mcp", b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + value + b"}"),
        ]:
            headers = {"Content-Type": JSON, "Accept": f"{JSON}, text/event-stream"}
            answer = await service.client.post(path, content=content, headers=headers)
            body = answer.json()
            assert (answer.status_code, body["code"]) == (400, "InvalidJson"), path
            assert body["detail"].startswith(why)
    assert service.rows("SELECT * FROM calls") == []
