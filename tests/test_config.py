from pathlib import Path

import pytest
from pydantic import ValidationError

from app import config
from app.core.rules import Action, Rule


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
