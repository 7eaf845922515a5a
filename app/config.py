"""Settings. Flags win over `TOOLCRIB_*` variables, these over `toolcrib.toml`, and that over the defaults here."""

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
from app.core.secrets import GLOBAL_PRINCIPAL, MAX_VALUE, InvalidSecret, Secret, check_name, check_value, read_domains
from app.core.sessions import Profile
from app.core.util.urls import read_url

CONFIG_FILE = Path("toolcrib.toml")
MAX_SECRET_FILE_BYTES = 4 * MAX_VALUE + 8  # a little more than the longest value, so that a longer one is refused
ORIGIN = re.compile(r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://[^/?#@*,\sA-Z]+")
OWN_PATHS = frozenset({"v1", "mcp", "docs", "openapi.json", "healthz", "readyz", "metrics", "oauth", "console"})


class BrokenConfig(Exception):
    """The configuration file or a variable cannot be parsed."""


class RuleSetting(BaseModel, extra="forbid"):
    """A permission rule of the operator."""

    permission: str = Field(default="*", description="Permission or tool name, with `*` and `?` as wildcards.")
    pattern: str = Field(default="*", description="What the rule applies to (a path, a command, ...), with wildcards.")
    action: Action = Field(description="`allow`, `ask` or `deny`.")

    def rule(self) -> Rule:
        return Rule(self.permission, self.pattern, self.action)


class AgentSetting(BaseModel, extra="forbid"):
    """Rules and approval preset of one agent name."""

    rules: list[RuleSetting] = Field(default=[], description="Rules for calls of this agent.")
    approval: Approval | None = Field(default=None, description="Approval preset for calls of this agent.")


class NetworkSetting(BaseModel, extra="forbid"):
    """The operator's network policy."""

    type: Literal["open", "allowlist", "disabled"] = Field(
        default="allowlist",
        description="`open`: every public host. `allowlist`: only the listed ones. `disabled`: none.",
    )
    allowed_domains: list[str] = Field(default=[], description="Host names such as `example.com` or `*.example.com`.")

    def policy(self) -> NetworkPolicy:
        return NetworkPolicy(self.type, tuple(self.allowed_domains))


class ExtraRootSetting(BaseModel, extra="forbid"):
    """A directory outside the workspaces that tools may reach by its absolute path."""

    path: Path = Field(description="Absolute path of the directory.")
    access: Literal["read", "write"] = Field(default="read", description="`write` includes reading.")


class SandboxSetting(BaseModel, extra="forbid"):
    """The sandbox of the processes that tools start."""

    backend: Literal["auto", "bwrap", "landlock", "none"] = Field(
        default="auto", description="Isolation backend; `auto` takes the strongest one that passes its self-test."
    )
    i_accept_unsandboxed: bool = Field(
        default=False, description="Required with backend `none`, so that it is never chosen by accident."
    )
    profile: Profile = Field(
        default=Profile.WORKSPACE_WRITE, description="Where processes may write; sessions can only narrow it."
    )
    network: Network = Field(
        default=Network.NONE,
        description="`allowlist`: the hosts of the network policy, through a proxy. Sessions can only narrow it.",
    )
    egress_degraded_ok: bool = Field(
        default=False,
        description="Accept `allowlist` with the backend landlock, which limits connections by port and not by host.",
    )
    egress_ports: list[int] = Field(default=[80, 443], description="Ports that the egress proxy connects to.")
    uid: int | None = Field(
        default=None,
        gt=0,
        le=2**31,
        description="User id of sandboxed processes when the service runs as root; 61100 when not set.",
    )
    read_roots: list[Path] = Field(
        default=[], description="Directories that processes may read besides those of the system."
    )
    memory: int = Field(
        default=2 * 1024**3, ge=16 * 1024**2, description="Bytes of memory for all processes of a call."
    )
    processes: int = Field(default=256, ge=1, description="Maximum number of processes and threads of a call.")
    file_size: int = Field(default=1024**3, gt=0, description="Bytes of the largest file a process may write.")
    open_files: int = Field(default=1024, ge=16, description="Maximum number of files a process may have open.")
    cpu_seconds: int = Field(default=3600, gt=0, description="Seconds of CPU time of a process.")
    temporary: int = Field(
        default=256 * 1024**2, gt=0, description="Bytes of the temporary directory, where the backend can limit it."
    )


class McpSetting(BaseModel, extra="forbid"):
    """MCP servers that Toolcrib connects to, and Toolcrib's own MCP server."""

    servers: dict[str, dict[str, Any]] = Field(
        default={}, description="MCP servers by name, each with `command` or `url` as in `POST /v1/mcp/servers`."
    )
    stdio_over_rest: bool = Field(
        default=False, description="Let admin keys add stdio servers over HTTP. The service starts their programs."
    )
    roots: list[Path] = Field(default=[], description="MCP roots of servers whose definition names none.")
    names: Literal["prefixed", "plain"] = Field(
        default="prefixed",
        description="Names at `/mcp` of the tools of MCP servers; `plain` omits the prefix where no names collide.",
    )


class LlmSetting(BaseModel, extra="forbid"):
    """The LLM API for sampling requests of MCP servers."""

    url: str = Field(description="Base URL of an OpenAI-compatible API; `/chat/completions` is appended.")
    model: str = Field(description="Model name.")
    secret: str | None = Field(default=None, description="Name of the secret that holds the API key.")
    timeout: float = Field(default=120, gt=0, le=3600, description="Seconds to wait for a response.")


class HookSetting(BaseModel, extra="forbid"):
    """A hook that is a command or a webhook."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name in events and logs.")
    on: list[Point] = Field(min_length=1, description="Hook points, such as `tool.execute.before`.")
    tools: list[str] = Field(default=["*"], description="Patterns of the tool names the hook applies to.")
    command: list[str] | None = Field(default=None, description="Program and arguments; JSON on stdin and stdout.")
    url: str | None = Field(default=None, description="URL of a webhook that takes a POST request.")
    secret: str | None = Field(default=None, description="Name of the secret that signs webhook requests.")
    env: list[str] = Field(default=[], description="Environment variables that the command inherits.")
    timeout: float = Field(default=30, gt=0, le=600, description="Seconds the hook may take.")
    on_failure: OnFailure | None = Field(
        default=None,
        description="`block` or `continue` when the hook fails; default: `block` at the points before execution.",
    )

    @model_validator(mode="after")
    def _check_kind(self) -> "HookSetting":
        if (self.command is None) == (self.url is None):
            raise ValueError("set either `command` or `url`")
        if self.command == []:
            raise ValueError("`command` must name a program")
        return self


class SecretSetting(BaseModel, extra="forbid"):
    """A secret of the operator, read once at start from a variable or a file."""

    env: str | None = Field(default=None, description="Environment variable that holds the value.")
    file: Path | None = Field(default=None, description="File that holds the value; a final line end is removed.")
    domains: list[str] = Field(default=[], description="Hosts that the value may be sent to.")

    @model_validator(mode="after")
    def _check_source(self) -> "SecretSetting":
        if (self.env is None) == (self.file is None):
            raise ValueError("set either `env` or `file`")
        return self

    def secret(self, name: str) -> tuple[Secret, str]:
        """The secret and its current value. Errors name the secret and never hold its value."""
        try:
            check_name(name)
            secret, value = self.without_value(name), self.read()
            check_value(value)
        except InvalidSecret as error:
            raise InvalidSecret(f"The secret {name} of the configuration cannot be used: {error}") from None
        return secret, value

    def without_value(self, name: str) -> Secret:
        """The secret without reading its value."""
        return Secret(GLOBAL_PRINCIPAL, name, read_domains(self.domains), None, None, "config")

    def read(self) -> str:
        """The value of the variable or the file."""
        if self.env is not None:
            if (value := os.environ.get(self.env)) is None:
                raise InvalidSecret(f"the variable {self.env} is not set.")
            return value
        assert self.file is not None, "the validator requires one of the two"
        try:
            with self.file.open("rb") as file:
                return decode_secret(file.read(MAX_SECRET_FILE_BYTES))
        except OSError as error:
            raise InvalidSecret(f"the file {self.file} cannot be read: {error.strerror}.") from None


def decode_secret(data: bytes) -> str:
    """A value from a file or a pipe, without its final line end; `check_value` refuses bytes that are not UTF-8."""
    return re.sub(r"\r?\n\Z", "", data.decode("utf-8", "surrogateescape"))


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TOOLCRIB_", extra="forbid", toml_file=CONFIG_FILE)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8700, ge=0, le=65_535, description="Port to listen on.")
    data_dir: Path = Field(
        default=Path(".toolcrib"),
        description="Directory of the database, the keys and the default workspace; for one service at a time.",
    )
    workspace: Path | None = Field(
        default=None, description="Directory that tools work in; default: `workspace` in the data directory."
    )
    database_url: str | None = Field(
        default=None,
        description="SQLite file as `sqlite:////path/to/file.db`; default: `toolcrib.db` in the data directory.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="The admin key; default: generated and stored in `admin.key` in the data directory."
    )
    allowed_hosts: list[str] = Field(
        default=[], description="Accepted Host headers besides loopback and `host`; `*` accepts any."
    )
    allowed_origins: list[str] = Field(default=[], description="Origins of web pages that may call the service (CORS).")
    workspace_roots: list[Path] = Field(
        default=[], description="Directories in which sessions may have their workspaces, besides the default one."
    )
    extra_roots: list[ExtraRootSetting] = Field(
        default=[],
        description="Directories outside the workspaces that tools may reach by absolute path; "
        "each use needs the permission `external_directory`.",
    )
    rules: list[RuleSetting] = Field(
        default=[], description="Permission rules on top of the built-in ones; the last match wins."
    )
    approval: Approval = Field(
        default="on-request",
        description="`on-request`: as the rules say. `untrusted`: all but reading asks. `never`: denied instead.",
    )
    agents: dict[str, AgentSetting] = Field(default={}, description="Rules and approval by agent name.")
    ask_timeout: float = Field(
        default=300, gt=0, le=604_800, description="Seconds in which an ask must be answered, unless the call sets it."
    )
    on_ask: OnAsk = Field(default="wait", description="`wait` for an answer, or `deny` calls that would ask.")
    network_policy: NetworkSetting | None = Field(
        default=None, description="Hosts that tools may reach; sessions can only narrow it."
    )
    private_networks: list[str] = Field(
        default=[], description="Private networks that tools may reach, such as `10.1.0.0/16`."
    )
    tools_dir: Path | None = Field(default=None, description="Directory of Python files with tools; they are executed.")
    hooks_dir: Path | None = Field(default=None, description="Directory of Python files with hooks; they are executed.")
    hooks: list[HookSetting] = Field(default=[], description="Command hooks and webhooks.")
    sandbox: SandboxSetting = Field(
        default=SandboxSetting(), description="The sandbox of the processes that tools start."
    )
    shell: ShellChoice = Field(
        default="auto",
        description="Which shell tools models are offered; `auto` decides by the model, `disabled` offers none.",
    )
    silence_timeout: float | None = Field(
        default=None, gt=0, description="Seconds after which a command without output is stopped; default: never."
    )
    terminals_limit: int = Field(default=64, ge=1, description="Maximum number of open terminals of a session.")
    terminal_idle: float = Field(
        default=1200, gt=0, description="Seconds after which an unused terminal or interpreter is closed."
    )
    mcp: McpSetting = Field(default=McpSetting(), description="MCP servers, and Toolcrib's own MCP server.")
    mcp_config: Path | None = Field(
        default=None, description="A file with `mcpServers`, as Claude Desktop, Cursor and VS Code have it."
    )
    llm: LlmSetting | None = Field(default=None, description="The LLM API for sampling requests of MCP servers.")
    public_url: str | None = Field(
        default=None, description="URL at which browsers reach the service; for OAuth redirects of MCP servers."
    )
    secrets: dict[str, SecretSetting] = Field(
        default={}, description="Global secrets by name, each with `env` or `file`."
    )
    redact_shapes_in_output: bool = Field(
        default=False, description="Redact in tool output whatever looks like a key, not only registered secrets."
    )
    queue_timeout: float = Field(default=300, gt=0, description="Seconds a call may wait before it runs.")
    output_limit: int = Field(default=64 * 1024 * 1024, ge=0, description="Bytes of output stored per call.")
    grace: float = Field(default=10, ge=0, description="Seconds that running calls have to finish at shutdown.")
    retention_days: float | None = Field(
        default=None, gt=0, description="Days after which ended calls are deleted; default: never."
    )
    retention_bytes: int | None = Field(
        default=None, gt=0, description="Size of the database above which the oldest calls are deleted; default: none."
    )
    body_limit: int = Field(default=8 * 1024 * 1024, gt=0, description="Maximum bytes of a request body.")
    file_limit: int = Field(default=64 * 1024 * 1024, gt=0, description="Maximum bytes of a file uploaded over HTTP.")
    header_limit: int = Field(
        default=64 * 1024, gt=0, description="Maximum bytes of a request line and its headers together."
    )
    header_count: int = Field(default=100, gt=0, description="Maximum number of headers of a request.")
    read_timeout: float = Field(
        default=10, gt=0, description="Seconds for the headers of a request, and between two parts of its body."
    )
    keep_alive: int = Field(default=75, gt=0, description="Seconds after which an idle HTTP connection is closed.")
    calls_per_key: int = Field(default=512, gt=0, description="Maximum number of unfinished calls of one key.")
    streams_per_key: int = Field(default=256, gt=0, description="Maximum number of open event streams of one key.")
    calls_limit: int = Field(default=4096, gt=0, description="Maximum number of unfinished calls of all keys.")
    tls_cert: Path | None = Field(default=None, description="Certificate chain (PEM) to serve HTTPS with.")
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of the certificate.")
    root_path: str = Field(default="", description="Path prefix under which a reverse proxy publishes the service.")
    forwarded_allow_ips: list[str] = Field(
        default=[], description="Addresses of proxies whose X-Forwarded headers are trusted; `*` trusts all."
    )
    traces_endpoint: str | None = Field(
        default=None, description="OTLP/HTTP endpoint for traces of calls; needs the extra `otel`."
    )
    print_key: bool = Field(default=True, description="Print the generated admin key at start.")
    access_log: bool = Field(default=True, description="Log a line for every request.")
    heartbeat: float = Field(default=15, gt=0, description="Seconds between heartbeats on an idle event stream.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Minimum log level.")
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="`auto`: text on a terminal, JSON lines elsewhere."
    )

    @field_validator("root_path")
    @classmethod
    def _check_root_path(cls, value: str) -> str:
        """A proxy may strip the prefix or not; both work only while the prefix is not a route of the service."""
        path = value.rstrip("/")
        if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
            raise ValueError("expected a path such as /tools/crib")
        if path and path.split("/")[1] in OWN_PATHS:
            raise ValueError(f"/{path.split('/')[1]} is a route of the service itself")
        return path

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _check_proxies(cls, addresses: list[str]) -> list[str]:
        for address in addresses:
            if address != "*":
                ip_network(address)
            elif len(addresses) > 1:
                raise ValueError("`*` trusts all proxies and must be the only entry")
        return addresses

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str | None) -> str | None:
        if url is not None and "?" in read_url(url).target:
            raise ValueError("expected a URL without a query, such as https://crib.example.com")
        return url

    @field_validator("private_networks")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            ip_network(network)
        return networks

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if origin == "*":
                raise ValueError("`*` would let every web page call the service; list the origins one by one")
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin such as https://app.example or http://localhost:3000: "
                    "lower case, no default port, no path, no trailing slash"
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
    """Read the settings; flags that are None are ignored."""
    if config is not None and not config.is_file():
        raise FileNotFoundError(f"There is no configuration file {config}.")
    kind: type[Settings] = Settings
    if config is not None:

        class FileSettings(Settings):
            model_config = SettingsConfigDict(toml_file=config)

        kind = FileSettings
    try:
        return kind(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError:
        raise
    except ValueError as error:  # invalid TOML or UTF-8, or a variable that is not valid JSON
        where = f"{config or CONFIG_FILE}: " if not isinstance(error, SettingsError) else ""
        raise BrokenConfig(f"The configuration cannot be read: {where}{error}.") from error
