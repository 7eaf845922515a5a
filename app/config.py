"""Settings, read once: flags first, then `TOOLCRIB_*` variables, then `toolcrib.toml`, then these defaults."""

import os
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from app.core.hooks import OnFailure, Point
from app.core.llm_models import ShellChoice
from app.core.network_policy import NetworkPolicy
from app.core.principals import OnAsk
from app.core.rules import Action, Approval, Rule
from app.core.sandbox import Network
from app.core.sandbox_profile import Profile
from app.core.secrets import EVERYBODY, MAX_VALUE, InvalidSecret, Secret, check_name, check_value, read_domains
from app.core.util.urls import read_url

CONFIG_FILE = Path("toolcrib.toml")
MAX_FILE = 4 * MAX_VALUE + 8  # a few bytes more than any value takes, so that a longer one is seen to be so
ORIGIN = re.compile(r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://[^/?#@*,\sA-Z]+")
OWN_PATHS = frozenset({"v1", "mcp", "docs", "openapi.json", "healthz", "readyz", "metrics", "oauth", "console"})


class BrokenConfig(Exception):
    """The configuration cannot even be read."""


class RuleSetting(BaseModel, extra="forbid"):
    """One line of the operator's rules."""

    permission: str = "*"
    pattern: str = "*"
    action: Action

    def rule(self) -> Rule:
        return Rule(self.permission, self.pattern, self.action)


class AgentSetting(BaseModel, extra="forbid"):
    """What counts for one agent name."""

    rules: list[RuleSetting] = []
    approval: Approval | None = None


class NetworkSetting(BaseModel, extra="forbid"):
    """The operator's network policy."""

    type: Literal["open", "allowlist", "disabled"] = "allowlist"
    allowed_domains: list[str] = []

    def policy(self) -> NetworkPolicy:
        return NetworkPolicy(self.type, tuple(self.allowed_domains))


class ExtraRootSetting(BaseModel, extra="forbid"):
    """A folder outside the workspaces that tools may reach by its absolute path."""

    path: Path
    access: Literal["read", "write"] = "read"


class SandboxSetting(BaseModel, extra="forbid"):
    """The walls around what a model starts."""

    backend: Literal["auto", "bwrap", "landlock", "none"] = Field(
        default="auto", description="What makes the walls; `auto` takes the strongest that passes its self-test."
    )
    i_accept_unsandboxed: bool = Field(
        default=False, description="Needed besides backend `none`, so that nobody runs without walls by accident."
    )
    profile: Profile = Field(
        default=Profile.WORKSPACE_WRITE, description="Where processes may write; sessions can only narrow it."
    )
    network: Network = Field(
        default=Network.NONE,
        description="`allowlist`: the hosts that network policies list, through a proxy. Sessions can only narrow it.",
    )
    egress_degraded_ok: bool = Field(
        default=False,
        description="Accept `allowlist` with the backend landlock, which cannot tell hosts on the proxy's port apart.",
    )
    egress_ports: list[int] = Field(default=[80, 443], description="Ports that the proxy connects to.")
    uid: int | None = Field(
        default=None, gt=0, le=2**31, description="Whom processes become when the service runs as root; 61100 if unset."
    )
    read_roots: list[Path] = Field(
        default=[], description="Folders with programs that processes may read besides the system's own."
    )
    memory: int = Field(default=2 * 1024**3, ge=16 * 1024**2, description="Bytes all processes of a call may take.")
    processes: int = Field(default=256, ge=1, description="Most processes and threads of a call.")
    file_size: int = Field(default=1024**3, gt=0, description="Bytes of the largest file a process may write.")
    open_files: int = Field(default=1024, ge=16, description="Most files a process may have open.")
    cpu_seconds: int = Field(default=3600, gt=0, description="Seconds of computing a process may take.")
    temporary: int = Field(
        default=256 * 1024**2, gt=0, description="Bytes of the temporary folder, where the backend can limit it."
    )


class McpSetting(BaseModel, extra="forbid"):
    """MCP servers, and Toolcrib as one."""

    servers: dict[str, dict[str, Any]] = Field(
        default={}, description="Servers by name, each with `command` or `url` as in `POST /v1/mcp/servers`."
    )
    stdio_over_rest: bool = Field(
        default=False, description="Let admin keys add programs over HTTP, which the service then starts."
    )
    roots: list[Path] = Field(default=[], description="Folders that servers are told to work in, unless they say.")
    names: Literal["prefixed", "plain"] = Field(
        default="prefixed",
        description="What `/mcp` calls the tools of servers; `plain` leaves the prefix out where it is not needed.",
    )


class LlmSetting(BaseModel, extra="forbid"):
    """The gateway to models, for what MCP servers want to ask one."""

    url: str = Field(description="An OpenAI-compatible API, up to where `/chat/completions` follows.")
    model: str = Field(description="The model that is asked.")
    secret: str | None = Field(default=None, description="The name of the secret that holds its key.")
    timeout: float = Field(default=120, gt=0, le=3600, description="Seconds for an answer.")


class HookSetting(BaseModel, extra="forbid"):
    """A hook that is a command or a webhook."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    on: list[Point] = Field(min_length=1)
    tools: list[str] = ["*"]
    command: list[str] | None = None
    url: str | None = None
    secret: str | None = None
    env: list[str] = []
    timeout: float = Field(default=30, gt=0, le=600)
    on_failure: OnFailure | None = None

    @model_validator(mode="after")
    def _is_one_kind(self) -> "HookSetting":
        if (self.command is None) == (self.url is None):
            raise ValueError("name either a `command` or a `url`")
        if self.command == []:
            raise ValueError("a command needs at least a program")
        return self


class SecretSetting(BaseModel, extra="forbid"):
    """A secret the operator brings along: from a variable or a file, read once at start."""

    env: str | None = None
    file: Path | None = None
    domains: list[str] = []

    @model_validator(mode="after")
    def _has_one_source(self) -> "SecretSetting":
        if (self.env is None) == (self.file is None):
            raise ValueError("name either `env` or `file`")
        return self

    def secret(self, name: str) -> tuple[Secret, str]:
        """The secret with its value, as it is now. What is wrong with it is said with its name, never its value."""
        try:
            check_name(name)
            secret, value = self.about(name), self.read()
            check_value(value)
        except InvalidSecret as error:
            raise InvalidSecret(f"The secret {name} of the configuration cannot be used: {error}") from None
        return secret, value

    def about(self, name: str) -> Secret:
        """The secret without its value, which is not read."""
        return Secret(EVERYBODY, name, read_domains(self.domains), None, None, "config")

    def read(self) -> str:
        """The value as it stands in the variable or the file; of a file, the last line's end does not count."""
        if self.env is not None:
            if (value := os.environ.get(self.env)) is None:
                raise InvalidSecret(f"the variable {self.env} is not set.")
            return value
        assert self.file is not None, "one of the two is there"
        try:
            with self.file.open("rb") as file:
                return text_of(file.read(MAX_FILE))
        except OSError as error:
            raise InvalidSecret(f"the file {self.file} cannot be read: {error.strerror}.") from None


def text_of(data: bytes) -> str:
    """What a file or a pipe holds, without the end of its last line; bytes that are no text are refused later."""
    return re.sub(r"\r?\n\Z", "", data.decode("utf-8", "surrogateescape"))


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
    workspace_roots: list[Path] = Field(
        default=[], description="Folders in which sessions may have their workspaces, besides the default one."
    )
    extra_roots: list[ExtraRootSetting] = Field(
        default=[],
        description="Folders that tools may reach by absolute paths, for reading or also for writing; "
        "the need `external_directory` stands before each, and what is in a workspace counts as the workspace's.",
    )
    rules: list[RuleSetting] = Field(
        default=[], description="Permission rules on top of the built-in ones; the last match wins."
    )
    approval: Approval = Field(
        default="on-request",
        description="`untrusted`: all but reading asks. `never`: what would ask is denied. `on-request`: as rules say.",
    )
    agents: dict[str, AgentSetting] = Field(default={}, description="Rules and approval by agent name.")
    ask_timeout: float = Field(
        default=300, gt=0, le=604_800, description="Seconds a person has to answer, unless the call says otherwise."
    )
    on_ask: OnAsk = Field(
        default="wait", description="`deny`: nobody is there to answer, so what would ask is denied at once."
    )
    network_policy: NetworkSetting | None = Field(
        default=None, description="Which hosts tools may reach; sessions can only narrow it."
    )
    private_networks: list[str] = Field(
        default=[], description="Private addresses tools may reach all the same, as networks like 10.1.0.0/16."
    )
    tools_dir: Path | None = Field(
        default=None, description="Folder of Python files with tools; they are executed, so none is looked for unasked."
    )
    hooks_dir: Path | None = Field(default=None, description="Folder of Python files with hooks; they are executed.")
    hooks: list[HookSetting] = Field(default=[], description="Command hooks and webhooks.")
    sandbox: SandboxSetting = Field(default=SandboxSetting(), description="The walls around what a model starts.")
    shell: ShellChoice = Field(
        default="auto",
        description="Which shell tools models are offered; `auto` goes by the model, `disabled` offers none.",
    )
    silence_timeout: float | None = Field(
        default=None, gt=0, description="Seconds after which a command that writes nothing is stopped; unset: never."
    )
    terminals_limit: int = Field(default=64, ge=1, description="Most terminals that a session has open at once.")
    terminal_idle: float = Field(
        default=1200, gt=0, description="Seconds after which a terminal or interpreter that nobody uses is ended."
    )
    mcp: McpSetting = Field(default=McpSetting(), description="MCP servers, and Toolcrib as one.")
    mcp_config: Path | None = Field(
        default=None, description="A file with `mcpServers`, as Claude Desktop, Cursor and VS Code have it."
    )
    llm: LlmSetting | None = Field(default=None, description="The gateway to models, for MCP servers that ask one.")
    public_url: str | None = Field(
        default=None, description="Where people reach the service, if not where it listens; for sign-ins elsewhere."
    )
    secrets: dict[str, SecretSetting] = Field(
        default={}, description="Secrets by name, each from `env` or `file`; they belong to everybody."
    )
    redact_shapes_in_output: bool = Field(
        default=False, description="Redact what looks like a key in tool output too, not only registered secrets."
    )
    queue_timeout: float = Field(default=300, gt=0, description="Seconds a call may wait for its turn.")
    output_limit: int = Field(default=64 * 1024 * 1024, ge=0, description="Bytes of output kept per call.")
    grace: float = Field(default=10, ge=0, description="Seconds that running calls get to finish at shutdown.")
    retention_days: float | None = Field(
        default=None, gt=0, description="Calls that ended longer ago are removed; everything is kept when not given."
    )
    retention_bytes: int | None = Field(
        default=None, gt=0, description="The oldest calls are removed while the records take more than this."
    )
    body_limit: int = Field(default=8 * 1024 * 1024, gt=0, description="Most bytes of a request's body.")
    file_limit: int = Field(
        default=64 * 1024 * 1024, gt=0, description="Most bytes of a file that is put into a workspace over HTTP."
    )
    header_limit: int = Field(default=64 * 1024, gt=0, description="Most bytes of a request's line and headers.")
    header_count: int = Field(default=100, gt=0, description="Most headers of a request.")
    read_timeout: float = Field(
        default=10, gt=0, description="Seconds for a request's headers to come, and for its body to make headway."
    )
    keep_alive: int = Field(default=75, gt=0, description="Seconds a connection stays open between two requests.")
    calls_per_key: int = Field(default=512, gt=0, description="Most calls of one key under way at once.")
    streams_per_key: int = Field(default=256, gt=0, description="Most event streams of one key open at once.")
    calls_limit: int = Field(default=4096, gt=0, description="Most calls under way at once, waiting ones included.")
    tls_cert: Path | None = Field(default=None, description="Certificate chain to serve HTTPS with.")
    tls_key: Path | None = Field(default=None, description="The private key of the certificate.")
    root_path: str = Field(default="", description="Path prefix that a proxy in front takes away.")
    forwarded_allow_ips: list[str] = Field(
        default=[], description="Addresses of proxies whose X-Forwarded headers are believed; none by default."
    )
    traces_endpoint: str | None = Field(
        default=None, description="OTLP/HTTP endpoint for traces of calls; needs the extra `otel`."
    )
    print_key: bool = Field(
        default=True, description="Print the generated key at start; where the output becomes a log, better not."
    )
    access_log: bool = Field(default=True, description="Log a line for every request.")
    heartbeat: float = Field(default=15, gt=0, description="Seconds between signs of life on a silent event stream.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="`auto`: readable on a terminal, JSON lines elsewhere."
    )

    @field_validator("root_path")
    @classmethod
    def _is_a_plain_prefix(cls, given: str) -> str:
        """A proxy may keep the prefix or take it away; that works only if it cannot be taken for a route."""
        path = given.rstrip("/")
        if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
            raise ValueError("a path as in /tools/crib is needed")
        if path and path.split("/")[1] in OWN_PATHS:
            raise ValueError(f"/{path.split('/')[1]} is a path of the service itself")
        return path

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_addresses(cls, given: list[str]) -> list[str]:
        for address in given:
            if address != "*":
                ip_network(address)
            elif len(given) > 1:
                raise ValueError("`*` stands for all and alone")
        return given

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, given: str | None) -> str | None:
        if given is not None and "?" in read_url(given).target:
            raise ValueError("an address as in https://crib.example.com is needed")
        return given

    @field_validator("private_networks")
    @classmethod
    def _are_networks(cls, given: list[str]) -> list[str]:
        for network in given:
            ip_network(network)
        return given

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if origin == "*":
                raise ValueError("`*` would let every web page call the service; list the origins one by one")
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin as browsers write it; like https://app.example or "
                    "http://localhost:3000: small letters, no default port, no path and no slash at the end"
                )
        return origins

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
    if config is not None and not config.is_file():
        raise FileNotFoundError(f"There is no configuration file {config}.")
    kind = Settings if config is None else _settings_from(config)
    try:
        return kind(**given)
    except ValidationError:
        raise
    except ValueError as error:  # no TOML, no UTF-8, or a variable that is not the JSON it should be
        where = f"{config or CONFIG_FILE}: " if not isinstance(error, SettingsError) else ""
        raise BrokenConfig(f"The configuration cannot be read: {where}{error}.") from error


def _settings_from(config: Path) -> type[Settings]:
    class FileSettings(Settings):
        model_config = SettingsConfigDict(toml_file=config)

    return FileSettings
