from pathlib import Path

import pytest
from pydantic import ValidationError

from app import config
from app.config import ExtraRootSetting, SecretSetting
from app.core.rules import Action, Rule
from app.core.secrets import GLOBAL_PRINCIPAL, InvalidSecret, Secret


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_flags_win_over_variables_and_these_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    config.CONFIG_FILE.write_text('port = 1\nhost = "10.0.0.1"\nlog_level = "error"\n')
    monkeypatch.setenv("TOOLCRIB_PORT", "2")
    monkeypatch.setenv("TOOLCRIB_HOST", "10.0.0.2")

    settings = config.load(port=3, host=None)

    assert (settings.port, settings.host, settings.log_level) == (3, "10.0.0.2", "error")


def test_another_file_can_be_named(tmp_path: Path) -> None:
    config.CONFIG_FILE.write_text("port = 1\n")
    (tmp_path / "other.toml").write_text("port = 2\n")

    assert config.load(tmp_path / "other.toml").port == 2


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no configuration file .*nope\.toml"):
        config.load(tmp_path / "nope.toml")


def test_a_misspelt_setting_is_refused() -> None:
    config.CONFIG_FILE.write_text("prot = 1\n")

    with pytest.raises(ValidationError, match="prot"):
        config.load()


def test_rules_are_read_in_order() -> None:
    config.CONFIG_FILE.write_text(
        '[[rules]]\naction = "allow"\n[[rules]]\npermission = "read"\npattern = "*.env"\naction = "deny"\n'
    )

    assert [setting.rule() for setting in config.load().rules] == [
        Rule("*", "*", Action.ALLOW),
        Rule("read", "*.env", Action.DENY),
    ]


def test_extra_roots_are_for_reading_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    config.CONFIG_FILE.write_text('[[extra_roots]]\npath = "/lib"\n[[extra_roots]]\npath = "/out"\naccess = "write"\n')
    expected = [ExtraRootSetting(path=Path("/lib"), access="read"), ExtraRootSetting(path=Path("/out"), access="write")]
    assert config.load().extra_roots == expected

    monkeypatch.setenv("TOOLCRIB_EXTRA_ROOTS", '[{"path": "/lib", "access": "all"}]')
    with pytest.raises(ValidationError, match=r"extra_roots\.0\.access"):
        config.load()


def test_a_secret_is_named_by_its_variable_or_its_file_and_not_read_yet() -> None:
    config.CONFIG_FILE.write_text(
        '[secrets]\nMAIL = { env = "MAIL_TOKEN", domains = ["mail.example"] }\nDISK = { file = "/run/disk" }\n'
    )

    assert config.load().secrets == {
        "MAIL": SecretSetting(env="MAIL_TOKEN", domains=["mail.example"]),
        "DISK": SecretSetting(file=Path("/run/disk")),
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("MAIL = {}", "set either `env` or `file`"),
        ('MAIL = { env = "A", file = "b" }', "set either `env` or `file`"),
        ('MAIL = { value = "canary" }', "Extra inputs are not permitted"),
        ('MAIL = "canary"', "valid dictionary"),
    ],
)
def test_a_secret_without_exactly_one_source_is_refused(line: str, reason: str) -> None:
    config.CONFIG_FILE.write_text(f"[secrets]\n{line}\n")

    with pytest.raises(ValidationError, match=reason):
        config.load()


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"a value", "a value"),
        (b"a value\n", "a value"),
        (b"a value\r\n", "a value"),
        (b"a value\n\n", "a value\n"),
        (b" a value \r", " a value \r"),
        (b"-----BEGIN\nline\n-----END\n", "-----BEGIN\nline\n-----END"),
    ],
)
def test_the_end_of_a_files_last_line_is_no_part_of_the_secret(tmp_path: Path, data: bytes, value: str) -> None:
    (tmp_path / "secret").write_bytes(data)

    assert SecretSetting(file=tmp_path / "secret").secret("MAIL") == (
        Secret(GLOBAL_PRINCIPAL, "MAIL", (), None, None, "config"),
        value,
    )


def test_a_variable_is_the_secret_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_TOKEN", " a value\n")

    assert SecretSetting(env="MAIL_TOKEN").read() == " a value\n"


@pytest.mark.parametrize("data", [b"\xff" * 20, b"x" * 65_537, "ä".encode() * 65_537, b"x" * 10_000_000])
def test_a_file_that_holds_no_secret_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "secret").write_bytes(data)

    with pytest.raises(InvalidSecret, match=r"^The secret MAIL of the configuration cannot be used: value: "):
        SecretSetting(file=tmp_path / "secret").secret("MAIL")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"port = = 1", "Invalid value (at line 1, column 8)"), (b'host = "\xff"', "'utf-8' codec can't decode")],
)
def test_a_file_that_cannot_be_read_is_said_with_its_name(content: bytes, said: str) -> None:
    config.CONFIG_FILE.write_bytes(content)

    with pytest.raises(config.BrokenConfig) as caught:
        config.load()

    assert str(caught.value).startswith(f"The configuration cannot be read: toolcrib.toml: {said}")


def test_a_variable_that_is_not_the_json_it_should_be_is_said_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCRIB_ALLOWED_HOSTS", "crib.example")

    with pytest.raises(config.BrokenConfig, match='"allowed_hosts"'):
        config.load()


@pytest.mark.parametrize(("given", "kept"), [("", ""), ("/", ""), ("/crib/", "/crib"), ("/a/b-c.d", "/a/b-c.d")])
def test_a_root_path_is_kept_without_its_last_slash(given: str, kept: str) -> None:
    assert config.load(root_path=given).root_path == kept


@pytest.mark.parametrize("given", ["crib", "/a b", "/a//b", "/ä", "/a?b", "/docs", "/v1/crib"])
def test_a_root_path_that_cannot_be_told_from_a_route_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="root_path"):
        config.load(root_path=given)


@pytest.mark.parametrize("given", ["crib.example.com", "ftp://crib", "https://crib/?a=b", "https://me:pass@crib", ""])
def test_a_public_url_that_nobody_can_go_to_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="public_url"):
        config.load(public_url=given)


@pytest.mark.parametrize("given", [[], ["*"], ["127.0.0.1", "::1", "10.0.0.0/8"]])
def test_proxies_are_named_by_address_or_network(given: list[str]) -> None:
    assert config.load(forwarded_allow_ips=given).forwarded_allow_ips == given


@pytest.mark.parametrize("given", [["proxy"], ["10.0.0.1/8"], ["*", "::1"], [""]])
def test_what_is_no_address_is_no_proxy(given: list[str]) -> None:
    with pytest.raises(ValidationError, match="forwarded_allow_ips"):
        config.load(forwarded_allow_ips=given)


@pytest.mark.parametrize("given", [["private"], ["10.0.0.1/8"], ["10.0.0.0/33"], ["*"]])
def test_private_networks_are_networks(given: list[str]) -> None:
    assert config.load(private_networks=["10.1.0.0/16", "fd00::/8", "127.0.0.1"])
    with pytest.raises(ValidationError, match="private_networks"):
        config.load(private_networks=given)


def test_origins_are_taken_as_browsers_write_them() -> None:
    origins = ["https://app.example", "http://localhost:3000", "http://[::1]:3000", "tauri://localhost"]

    assert config.load(allowed_origins=origins).allowed_origins == origins


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        ("*", "would let every web page call the service"),
        ("https://app.example/", "no trailing slash"),
        ("https://app.example/path", "no path"),
        ("https://App.example", "lower case"),
        ("https://app.example:443", "no default port"),
        ("http://app.example:80", "no default port"),
        ("https://*.app.example", "is not an origin"),
        ("app.example", "is not an origin"),
        ("null", "is not an origin"),
        ("", "is not an origin"),
    ],
)
def test_what_could_never_match_or_would_match_everything_is_refused(origin: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        config.load(allowed_origins=["https://app.example", origin])
