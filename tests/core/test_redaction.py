import base64
import json
import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.redaction import MARK, MIN_FORM, SHAPES, Redactor, forms_of
from app.core.util.json_codec import dumps

SECRET = 'pa/ss+"wörd" \\1=?'
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIBOgIBAAJBAKj34GkxFhD9\n0vdBbmFfRm9vYmFy\n-----END RSA PRIVATE KEY-----"
KEYS = {
    "openai": "sk-proj-4f9Xq2LmT0b7Zk1RcV8sYw",
    "anthropic": "sk-ant-api03-4f9Xq2LmT0b7Zk1RcV8sYw",
    "stripe": "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "github": "ghp_" + "a1B2" * 9,
    "github fine-grained": "github_pat_11ABCDEFG0abcdefghijkl_mnop",
    "gitlab": "glpat-abcdefghij0123456789",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "aws session": "ASIAIOSFODNN7EXAMPLE",
    "google": "AIza" + "b" * 35,
    "slack": "xoxb-123456789012-abcdef",
    "npm": "npm_" + "c" * 36,
    "hugging face": "hf_" + "d" * 34,
    "pypi": "pypi-" + "e" * 60,
    "ours": "tk_" + "f" * 43,
    "our ticket": "tt_" + "f" * 43,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3",
    "private key": PEM,
}
INNOCENT = [
    "a task-management-system-of-2024-and-more",
    "Basic information about bearer tokens and authorization",
    "see https://example.com/a:b@c and ssh://git@host/x and user@example.com",
    "eyJ is how a JWT begins; sk- is how a key does",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    '{"authorization": {"type": "none"}}',
]

values = st.text(min_size=MIN_FORM, max_size=40).filter(lambda text: len(text.strip()) >= MIN_FORM and "\0" not in text)


def travel(value: str) -> dict[str, str]:
    """The ways a secret is met."""
    data = value.encode()
    return {
        "as it is": f"the key is {value}, keep it",
        "json": json.dumps({"key": value}),
        "json as we write it": dumps({"key": value}).decode(),
        "json in json": json.dumps({"body": json.dumps({"key": value}, ensure_ascii=False)}, ensure_ascii=False),
        "query": f"https://x.test/?key={quote_plus(value)}&b=1",
        "path": f"https://x.test/{quote(value, safe='')}/b",
        "lower-case escapes": re.sub("%..", lambda found: found[0].lower(), quote(value, safe="")),
        "base64": base64.b64encode(data).decode(),
        "basic auth": base64.b64encode(b"u:" + data).decode(),
        "other alignment": base64.b64encode(b"me:" + data + b"\n").decode(),
        "third alignment": base64.b64encode(b"user:" + data + b"..").decode(),
        "url-safe base64": base64.urlsafe_b64encode(b"~~" + data).decode(),
    }


def test_a_registered_value_is_found_in_every_form_it_travels_in(subtests: pytest.Subtests) -> None:
    cases: list[str] = list(travel(SECRET))
    for way in cases:
        with subtests.test(way=way):
            text = travel(SECRET)[way]

            redacted = Redactor([SECRET]).text(text, is_output=True)

            assert MARK in redacted
            assert not any(form in redacted for form in forms_of(SECRET))


def test_what_stands_around_a_value_stays() -> None:
    assert Redactor(["hunter22"]).text("login hunter22 ok, hunter2 too") == f"login {MARK} ok, hunter2 too"


def test_each_line_of_a_long_secret_is_a_secret() -> None:
    assert Redactor([PEM]).text("x MIIBOgIBAAJBAKj34GkxFhD9 y", is_output=True) == f"x {MARK} y"


def test_the_longer_of_two_values_goes_whole() -> None:
    assert Redactor(["abcdef", "abcdefghi"]).text("abcdefghi abcdefgh") == f"{MARK} {MARK}gh"


@given(st.lists(values, min_size=1, max_size=4), st.text(), st.text())
def test_no_value_is_left_in_any_text(secrets: list[str], before: str, after: str) -> None:
    redactor = Redactor(secrets)

    redacted = redactor.text(before + "".join(secrets) + after, is_output=True)

    assert not any(secret in redacted for secret in secrets if secret not in MARK and MARK not in secret)


@given(st.lists(values, min_size=1, max_size=3), st.lists(st.integers(1, 7), min_size=1), st.text(max_size=20))
@example(["aXbaXb"], [2], "aXbaXbaXb")
@example(["abcdef", "abcdefghi"], [1], "abcdefgh abcdefghi abcde")
def test_a_value_in_pieces_is_found_as_if_it_came_whole(secrets: list[str], sizes: list[int], text: str) -> None:
    whole = text + "".join(secrets) + text + secrets[0][:-1]
    redactor = Redactor(secrets)
    stream = redactor.stream()

    handed, start = "", 0
    for number in range(len(whole)):
        size = sizes[number % len(sizes)]
        handed += stream.feed(whole[start : start + size])
        start += size

    assert handed + stream.finish() == redactor.text(whole, is_output=True)


def test_a_stream_holds_back_only_what_may_be_a_beginning() -> None:
    stream = Redactor(["hunter22"]).stream()

    assert stream.feed("hello hunt") == "hello "
    assert stream.feed("ing") == "hunting"
    assert stream.feed("hunter2") == ""
    assert stream.finish() == "hunter2"
    assert stream.finish() == ""


def test_values_registered_while_a_stream_runs_count_from_then_on() -> None:
    redactor = Redactor()
    stream = redactor.stream()
    stream.feed("nothing yet, ")
    redactor.replace(["hunter22"])

    assert stream.feed("hunter") + stream.feed("22!") == f"{MARK}!"


def test_the_key_of_the_service_is_kept_out_whatever_is_registered() -> None:
    redactor = Redactor(["hunter22"])
    redactor.add_own_key("the-key-of-the-house")
    redactor.replace(["other-value"])

    assert redactor.text("the-key-of-the-house hunter22 other-value") == f"{MARK} hunter22 {MARK}"


def test_a_key_that_could_be_a_word_is_left_alone() -> None:
    redactor = Redactor()
    redactor.add_own_key("default")

    assert redactor.text("the default session") == "the default session"


def test_a_well_known_key_is_found_by_its_shape(subtests: pytest.Subtests) -> None:
    for name in KEYS:
        with subtests.test(name=name):
            key = KEYS[name]

            assert Redactor().text(f"use {key}.") == f"use {MARK}." or name == "jwt"
            assert key not in Redactor().text(f"use {key}.")
            assert json.loads(Redactor().json(dumps({"text": f"use {key} now", "n": 1}).decode())) == {
                "text": f"use {MARK} now",
                "n": 1,
            }


def test_every_shape_is_shown_once_to_be_found() -> None:
    texts = [*KEYS.values(), "https://me:secret1@host/", "Authorization: Basic dXNlcjpw", "Bearer abc123def456ghi789"]

    for hint, pattern in SHAPES:
        assert any(hint in text and pattern.search(text) for text in texts), hint


def test_a_password_in_a_url_goes_and_the_url_stays() -> None:
    text = "postgres://app:s3cr3t!@db:5432/x"

    assert Redactor().text(text) == f"postgres://app:{MARK}@db:5432/x"


@pytest.mark.parametrize(
    ("header", "redacted"),
    [
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {MARK}"),
        ("authorization=token0815", f"authorization={MARK}"),
        ('{"Authorization": "Basic dXNlcjpwYXNz"}', f'{{"Authorization": "Basic {MARK}"}}'),
        ("curl -H 'Authorization: Bearer x1y2z3w4'", f"curl -H 'Authorization: Bearer {MARK}'"),
        ("bearer 0123456789abcdef", f"bearer {MARK}"),
    ],
)
def test_the_value_of_an_authorization_header_goes(header: str, redacted: str) -> None:
    assert Redactor().text(header) == redacted


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_is_left_alone(text: str) -> None:
    assert Redactor().text(text) == text
    assert Redactor().finds(text) is False


def test_shapes_stay_in_output_unless_asked_for(subtests: pytest.Subtests) -> None:
    for name in KEYS:
        with subtests.test(name=name):
            text = f"use {KEYS[name]}\n"

            assert Redactor().text(text, is_output=True) == text
            assert KEYS[name] not in Redactor(shapes_in_output=True).text(text, is_output=True)


def test_a_shape_split_across_pieces_is_found_when_asked_for(subtests: pytest.Subtests) -> None:
    for name in KEYS:
        for size in [1, 7, 50]:
            with subtests.test(name=name, size=size):
                text = f"first line\nuse {KEYS[name]} now\nlast line\n"
                stream = Redactor(shapes_in_output=True).stream()

                handed = (
                    "".join(stream.feed(text[start : start + size]) for start in range(0, len(text), size))
                    + stream.finish()
                )

                assert handed == f"first line\nuse {MARK} now\nlast line\n"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values, st.lists(values, min_size=1, max_size=3))
def test_json_stays_json_and_holds_no_value(body: object, secrets: list[str]) -> None:
    text = dumps({"body": body, "secrets": secrets, "nested": json.dumps(secrets)}).decode()

    redacted = json.loads(Redactor(secrets).json(text))

    assert set(redacted) <= {"body", "secrets", "nested", MARK}
    shown = dumps(redacted).decode()
    assert not Redactor(secrets).finds(shown.replace(MARK, ""), is_output=True)


@given(json_values)
def test_json_without_secrets_is_the_same_text(body: object) -> None:
    text = dumps(body).decode()

    assert Redactor(["no such value"]).json(text, is_output=True) is text


def test_a_number_that_is_a_secret_goes_too() -> None:
    assert (
        Redactor(["8675309"]).json('{"pin":8675309,"n":8675,"yes":true}') == f'{{"pin":"{MARK}","n":8675,"yes":true}}'
    )


def test_a_key_of_an_object_can_be_a_secret() -> None:
    assert Redactor(["hunter22"]).json('{"hunter22":1}') == f'{{"{MARK}":1}}'


def test_a_value_that_looks_like_the_structure_of_json_does_not_break_it() -> None:
    text = '{"a":"x","b":"y"}'

    assert json.loads(Redactor(['x","b":"y']).json(text)) == {"a": "x", "b": "y"}


def test_in_a_pause_only_what_may_be_a_registered_value_is_held_back() -> None:
    stream = Redactor([SECRET], shapes_in_output=True).stream()

    held = stream.feed(f"> {KEYS['github']} {SECRET[:4]}")
    paused = stream.pause()
    rest = stream.feed(SECRET[4:]) + stream.finish()

    assert (held, paused, rest) == ("", f"> {MARK} ", MARK)


def test_parts_keep_their_own_values() -> None:
    redactor = Redactor(["a secret of the book"])
    part, other = redactor.part("tokens"), redactor.part("others")
    part.replace(["the-token-of-a-server", "a word"])
    other.replace(["another-token-altogether"])

    redactor.replace(["a new secret of the book"])

    assert redactor.text("the-token-of-a-server another-token-altogether a new secret of the book") == " ".join(
        [MARK] * 3
    )
    assert redactor.text("a secret of the book, a word") == "a secret of the book, a word"
    part.replace([])
    assert redactor.text("the-token-of-a-server another-token-altogether") == f"the-token-of-a-server {MARK}"
