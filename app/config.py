"""Settings, read once: flags first, then `TOOLCRIB_*` variables, then `toolcrib.toml`, then these defaults."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from app.core.rules import Action, Rule

CONFIG_FILE = Path("toolcrib.toml")


class RuleSetting(BaseModel, extra="forbid"):
    """One line of the operator's rules."""

    permission: str = "*"
    pattern: str = "*"
    action: Action

    def rule(self) -> Rule:
        return Rule(self.permission, self.pattern, self.action)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TOOLCRIB_", extra="forbid", toml_file=CONFIG_FILE)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8700, ge=0, le=65_535, description="Port to listen on.")
    data_dir: Path = Field(default=Path(".toolcrib"), description="Where records, keys and own workspaces are kept.")
    workspace: Path | None = Field(
        default=None, description="The folder tools work in; made inside the data directory when not given."
    )
    database_url: str | None = Field(
        default=None, description="A SQLite file other than the one in the data directory."
    )
    api_key: SecretStr | None = Field(default=None, description="The admin key, instead of a generated one.")
    allowed_hosts: list[str] = Field(
        default=[], description="Host names clients may use besides loopback and the address listened on; `*` for any."
    )
    allowed_origins: list[str] = Field(default=[], description="Origins of web pages that may call the service.")
    rules: list[RuleSetting] = Field(
        default=[RuleSetting(action=Action.ALLOW)], description="Permission rules; the last match wins, no match asks."
    )
    queue_timeout: float = Field(default=300, gt=0, description="Seconds a call may wait for its turn.")
    output_limit: int = Field(default=64 * 1024 * 1024, ge=0, description="Bytes of output kept per call.")
    grace: float = Field(default=10, ge=0, description="Seconds that running calls get to finish at shutdown.")
    heartbeat: float = Field(default=15, gt=0, description="Seconds between signs of life on a silent event stream.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="`auto`: readable on a terminal, JSON lines elsewhere."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(config: Path | None = None, **flags: Any) -> Settings:
    """The settings with these flags; a flag that is None was not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    if config is None:
        return Settings(**given)
    if not config.is_file():
        raise FileNotFoundError(f"There is no configuration file {config}.")
    return _settings_from(config)(**given)


def _settings_from(config: Path) -> type[Settings]:
    class FileSettings(Settings):
        model_config = SettingsConfigDict(toml_file=config)

    return FileSettings
