"""API descriptions are read into plain JSON values, whatever their text does."""

from typing import Any

import pytest

from app.custom.openapi.document import parse


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_a_description_is_read_as_json_would_say_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ('{"openapi": "3.1.0", "n": 1.5}', {"openapi": "3.1.0", "n": 1.5}),
        ('\ufeff {"a": [null, true]}', {"a": [None, True]}),
        ("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}),
        ("openapi: 3.1.0\nversion: 2024-01-31\n", {"openapi": "3.1.0", "version": "2024-01-31"}),
        ("a: 2024-01-31T10:00:00Z", {"a": "2024-01-31T10:00:00Z"}),
        ("enum: [on, off, yes, no, y, true]", {"enum": ["on", "off", "yes", "no", "y", True]}),
        ("a: 12:30:45\nb: 0777\nc: 0x1f\nd: 1_000", {"a": "12:30:45", "b": "0777", "c": "0x1f", "d": "1_000"}),
        ("a: 1.5\nb: 1e3\nc: .inf\nd: .nan\ne: -7", {"a": 1.5, "b": 1000.0, "c": ".inf", "d": ".nan", "e": -7}),
        ("responses:\n  200: ok\n  default: no\n  true: x", {"responses": {"200": "ok", "default": "no", "true": "x"}}),
        ("a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: 2", {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}),
        ("a: " + "9" * 5000, {"a": "9" * 5000}),
        ("a: ~\nb:\nc: null\nd: ''", {"a": None, "b": None, "c": None, "d": ""}),
    ]
    for text, document in cases:
        with subtests.test(text=text, document=document):
            assert parse(text) == document


def test_what_an_alias_repeats_is_copied() -> None:
    found = parse("a: &x [1]\nb: *x")

    assert found["a"] is not found["b"]


def test_what_is_no_description_is_refused_with_a_sentence(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "",
        "[1, 2]",
        "just text",
        '{"a": ',
        "a: [",
        "a: b: c",
        "a: !!python/object/apply:os.system [ls]",
        "a: !!binary aGk=",
        "a: !!timestamp 2024-01-31",
        "a: !!set {x}",
        "? [1, 2]\n: x",
        "a: *unknown",
        "a: &a [*a]",
        bomb(9),
        "a: " + "[" * 100_000,
        "- " * 100_000 + "x",
        '{"a":' * 100_000,
        "x" * (17 * 1024 * 1024),
    ]
    for text in cases:
        with subtests.test(text=text), pytest.raises(ValueError, match=r"\.$"):
            parse(text)
