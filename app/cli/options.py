"""What all commands share: how they print, how they fail, and how they find the service."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

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

MENDABLE = (
    *(config.BrokenConfig, Misconfigured, StoreError, InvalidSecret, SecretConfigured, BadCertificate),
    *(lock.AlreadyRunning, ServiceProblem, OSError),
)
WIDE = 240  # where nobody looks, nothing is folded

out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, soft_wrap=True, highlight=False)

DataDir = Annotated[Path | None, typer.Option(help="Where the service keeps its records.")]
Config = Annotated[Path | None, typer.Option("--config", help="Configuration file instead of ./toolcrib.toml.")]
Url = Annotated[str | None, typer.Option(envvar="TOOLCRIB_URL", help="A service elsewhere; its key with --key.")]
KeyOption = Annotated[str | None, typer.Option("--key", envvar="TOOLCRIB_API_KEY", help="The key to use.")]


@contextmanager
def plainly() -> Iterator[None]:
    """What the user can mend is one sentence and exit code 1, never a traceback."""
    try:
        yield
    except ValidationError as error:
        for item in error.errors(include_url=False):
            where = ".".join(str(part) for part in item["loc"])
            err.print(f"[red]setting {escape(where)}:[/] {escape(item['msg'])}")
        raise typer.Exit(1) from None
    except MENDABLE as error:
        err.print("[red]error:[/]", escape(str(error)))
        raise typer.Exit(1) from None


def client(url: str | None, key: str | None, data_dir: Path | None, config_file: Path | None) -> ServiceClient:
    """The service named by --url, or the one that runs on the data directory."""
    settings = config.load(config_file, data_dir=data_dir)
    token = key or (settings.api_key and settings.api_key.get_secret_value()) or admin_key.read(settings.data_dir)
    running = None if url else lock.find_holder(settings.data_dir)
    where, certificate = (running.url, running.certificate) if running else (url, None)
    if where is None:
        raise ServiceProblem(
            f"No Toolcrib runs on {settings.data_dir}. Start one with `toolcrib serve`, or give --url."
        )
    if not token:
        raise ServiceProblem("No key: give --key or set TOOLCRIB_API_KEY.")
    return ServiceClient(where, token, certificate)
