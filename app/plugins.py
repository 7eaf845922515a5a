"""Loads hooks and tools of the operator, from settings, directories and entry points."""

import os
from pathlib import Path

from app.config import Settings
from app.core.custom_tools import Loaded, Unloaded
from app.core.errors import Misconfigured
from app.core.hooks import Hook
from app.core.ports import Clock, Outbound
from app.core.sandbox import Processes
from app.core.secrets import GLOBAL_PRINCIPAL
from app.custom import hooks as custom_hooks
from app.custom import python_tools as tool_files
from app.sandbox.files.workspaces import python_files
from app.store.secrets import SecretStore


def load_hooks(
    settings: Settings, secrets: SecretStore, *, processes: Processes, outbound: Outbound, clock: Clock
) -> list[Hook]:
    """The hooks of the settings, of files and of installed packages."""

    def sign(name: str) -> str:
        if (held := secrets.find(GLOBAL_PRINCIPAL, name)) is None:
            raise LookupError(name)
        return held[1]

    deps = custom_hooks.HookDeps(processes=processes, outbound=outbound, sign=sign, clock=clock, environ=os.environ)
    configured = custom_hooks.from_settings(settings.hooks, deps)
    files, installed = custom_hooks.from_files(_hook_files(settings)), custom_hooks.from_entry_points()
    if failures := files.failures + installed.failures:  # without a hook that should deny, everything would pass
        raise Misconfigured(f"A hook cannot be loaded: {failures[0]}. Correct or remove it.")
    return [*configured, *files.hooks, *installed.hooks]


def require_tools_dir(settings: Settings) -> None:
    if settings.tools_dir and not settings.tools_dir.is_dir():
        raise Misconfigured(f"tools_dir is {settings.tools_dir}, and there is no such folder.")


def load_tools(settings: Settings) -> Loaded:
    """The tools of files. A directory that was removed since the start is reported as a failure."""
    folder = settings.tools_dir
    is_there = folder is not None and folder.is_dir()
    loaded = tool_files.load(python_files(folder) if folder and is_there else [])
    if folder and not is_there:
        loaded.failed.append(Unloaded(str(folder), "There is no such folder."))
    return loaded


def _hook_files(settings: Settings) -> list[Path]:
    if (folder := settings.hooks_dir) is None:
        return []
    try:
        return python_files(folder)
    except OSError as error:
        raise Misconfigured(f"hooks_dir is {folder}, which cannot be read: {error.strerror}.") from None
