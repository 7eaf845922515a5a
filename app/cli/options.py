"""Shared by all commands: options, output, error handling, and how the service is found."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from app import config
from app.core.errors import Misconfigured, StoreError
from app.core.secrets import InvalidSecret, SecretConfigured
from app.net.service_client import ServiceClient, ServiceProblem
from app.net.tls import BadCertificate
from app.store import admin_key, lock

USER_ERRORS = (
    *(config.BrokenConfig, Misconfigured, StoreError, InvalidSecret, SecretConfigured, BadCertificate),
    *(lock.AlreadyRunning, ServiceProblem, OSError),
)
PIPE_WIDTH = 240  # so that nothing is wrapped when the output is not a terminal

out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
err = Console(stderr=True, soft_wrap=True, highlight=False)

DataDir = Annotated[Path | None, typer.Option(help="Data directory of the service.")]
Config = Annotated[Path | None, typer.Option("--config", help="Configuration file instead of ./toolcrib.toml.")]
Url = Annotated[str | None, typer.Option(envvar="TOOLCRIB_URL", help="URL of another service; its key with --key.")]
KeyOption = Annotated[str | None, typer.Option("--key", envvar="TOOLCRIB_API_KEY", help="The key to use.")]
OPTIONS: dict[str, Any] = {"url": Url, "key": KeyOption, "data_dir": DataDir, "config_file": Config}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The service that a command works on: the one at `url`, or the one that runs on the data directory."""

    url: str | None = None
    key: str | None = None
    data_dir: Path | None = None
    config_file: Path | None = None

    def settings(self) -> config.Settings:
        return config.load(self.config_file, data_dir=self.data_dir)

    def is_stopped(self) -> bool:
        return self.url is None and lock.holder_url(self.settings().data_dir) is None

    def client(self) -> ServiceClient:
        settings = self.settings()
        configured = settings.api_key and settings.api_key.get_secret_value()
        token = self.key or configured or admin_key.read(settings.data_dir)
        running = None if self.url else lock.find_holder(settings.data_dir)
        where, certificate = (running.url, running.certificate) if running else (self.url, None)
        if where is None:
            raise ServiceProblem(
                f"No Toolcrib runs on {settings.data_dir}. Start one with `toolcrib serve`, or use --url."
            )
        if not token:
            raise ServiceProblem("No key: use --key or set TOOLCRIB_API_KEY.")
        return ServiceClient(where, token, certificate)


def with_target(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add these options (default: all) to a command, which gets them as its parameter `target`."""
    names = names or tuple(OPTIONS)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            command(target=Target(**{name: values.pop(name) for name in names}), **values)

        own = [item for item in inspect.signature(command).parameters.values() if item.name != "target"]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=OPTIONS[name])
            for name in names
        ]
        parameters = [*(item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own), *shared]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        wrapper.__annotations__ = {item.name: item.annotation for item in parameters}
        return wrapper

    return decorate


@contextmanager
def user_errors() -> Iterator[None]:
    """Print an error that the user can correct as one sentence and exit with 1, without a traceback."""
    try:
        yield
    except ValidationError as error:
        for item in error.errors(include_url=False):
            where = ".".join(str(part) for part in item["loc"])
            err.print(f"[red]setting {escape(where)}:[/] {escape(item['msg'])}")
        raise typer.Exit(1) from None
    except USER_ERRORS as error:
        err.print("[red]error:[/]", escape(str(error)))
        raise typer.Exit(1) from None
