"""What several file tools share: listing a folder, writing whole files, applying a patch, tools of the file routes."""

import errno
import fnmatch
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from app.core.errors import BinaryFile, FileFailed, InvalidArgs, OutsideWorkspace
from app.core.files import touching
from app.core.ports import Change, Entry, EntryKind, PathScope, Snapshot, Workspace
from app.core.results import Result, Truncation
from app.core.rules import Need
from app.core.tools import Context, Effect, Tool, raise_if_canceled, typed
from app.core.util.path_text import one_line, printable
from app.text.edit.draft import BOM, Draft, changes_of, diff_facts
from app.text.file_text import Content, decode
from app.text.patch.apply import StagedFiles
from app.text.patch.parse import Add, Delete, Operation, Update

MAX_NAME_BYTES = 500
MAX_ENTRIES = 100_000
MAX_OUTPUT = Truncation().limit - 1000
"""Tools that number their lines cut here, at a whole line: what the dispatcher truncates has no number to ask for."""
SUFFIXES: dict[EntryKind, str] = {"file": "", "directory": "/", "symlink": "@", "other": "?"}
KEPT = {"crlf": "its CRLF line ends", "bom": "its byte order mark"}


def count_lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


class Found(NamedTuple):
    """An entry, its level, and its path from the folder that is listed."""

    level: int
    path: str
    entry: Entry

    def line(self) -> str:
        name = one_line(printable(self.entry.name)).encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        return "  " * self.level + name + SUFFIXES[self.entry.kind]


def list_folder(
    path: str,
    ctx: Context,
    stop: Event,
    *,
    offset: int = 1,
    limit: int = 25,
    depth: int = 2,
    ignore: Sequence[str] = (),
) -> Result:
    """A folder as an indented tree: `limit` entries from number `offset` on."""
    limit = min(limit, MAX_ENTRIES)
    shown, seen, size, has_more = list[Found](), 0, 0, False
    for seen, found in enumerate(_walk(path, ctx, depth, ignore), 1):
        has_more = len(shown) == limit or size > MAX_OUTPUT
        if has_more or stop.is_set():
            break
        if seen >= offset:
            shown.append(found)
            size += len(found.line()) + 1
    if seen and not shown:
        raise InvalidArgs(f"offset {offset} is past the last entry of {path}, which is number {seen}.")
    head = f"Absolute path: {ctx.workspace.display(path)}"
    foot = [f"More than {len(shown)} entries found"] if has_more else []
    return Result(
        output="\n".join([head, *(found.line() for found in shown), *foot]),
        title=path,
        metadata={"entries": len(shown), "has_more": has_more, "next_offset": seen if has_more else None},
        structured={"entries": [{"path": found.path, "type": found.entry.kind} for found in shown]},
    )


def _walk(root: str, ctx: Context, depth: int, ignore: Sequence[str]) -> Iterator[Found]:
    """Each folder followed by its entries. Folders are opened only when they are reached."""
    is_ignored, workspace = _ignore_filter(ignore), ctx.workspace
    approved = next(iter(ctx.approved)) if ctx.approved else None
    stack = [("", approved, workspace.scan(root, approved=_only(approved)))]
    while stack:
        folder, name, entries = stack[-1]
        entry = next(entries, None)
        if entry is None:
            stack.pop()
            continue
        path = folder + entry.name
        if is_ignored(path):
            continue
        yield Found(len(stack) - 1, printable(path), entry)
        if entry.kind == "directory" and len(stack) < depth:
            # The canonical name that the subfolder must still have when it is opened.
            own = printable(entry.name)
            below = None if name is None else own if name == "." else f"{name}/{own}"
            stack.append((path + "/", below, _scan_if_open(workspace, os.path.join(root, path), below)))


def _ignore_filter(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path is ignored. A pattern without a slash matches the last part of a path."""
    if not patterns:
        return lambda path: False
    known = [pattern.removeprefix("./").rstrip("/").removesuffix("/**") for pattern in patterns]
    whole = re.compile("|".join(fnmatch.translate(pattern) for pattern in known))
    names = re.compile("|".join(fnmatch.translate(pattern) for pattern in known if "/" not in pattern) or r"(?!)")
    return lambda path: bool(whole.match(path) or names.match(path.rpartition("/")[2]))


def _scan_if_open(workspace: Workspace, path: str, approved: str | None) -> Iterator[Entry]:
    """A folder that is gone or not accessible is shown without its entries."""
    try:
        return workspace.scan(path, approved=_only(approved))
    except (FileFailed, OutsideWorkspace):
        return iter(())


def _only(name: str | None) -> set[str] | None:
    return None if name is None else {name}


class File(BaseModel, extra="forbid"):
    """One file and its whole text."""

    path: str = Field(description="File to make or replace: relative to the workspace, or absolute and inside it.")
    content: str = Field(description="The whole text of the file.")


def write_needs(files: Sequence[File], scope: PathScope) -> list[Need]:
    _canonical_names(files, scope)
    return touching(scope, "edit", [file.path for file in files])


def write_files(files: Sequence[File], ctx: Context, stop: Event) -> Result:
    """Write these files in one commit and report on each of them."""
    names = _canonical_names(files, ctx.workspace)
    writes = [_prepare_write(file, name, ctx) for file, name in zip(files, names, strict=True)]
    raise_if_canceled(stop)
    ctx.workspace.commit([change for write in writes for change in write.changes], approved=ctx.approved)
    metadata = diff_facts(write.draft for write in writes if write.changes)
    kept = {write.draft.path: write.kept for write in writes if write.kept}
    by_path = {file["path"]: file for file in metadata["files"]}
    return Result(
        output="\n".join(_describe_write(write, by_path.get(write.draft.path)) for write in writes),
        title=files[0].path if len(files) == 1 else f"{len(files)} files",
        metadata=metadata | {"kept": kept} if kept else metadata,
    )


def _canonical_names(files: Sequence[File], scope: PathScope) -> list[str]:
    """Raises `InvalidArgs` when a file is given twice, or is the folder of another one."""
    paths: dict[str, str] = {}
    for file in files:
        name = scope.name(file.path)
        if name in paths:
            same = file.path if paths[name] == file.path else f"{paths[name]} and {file.path}, which are the same file,"
            raise InvalidArgs(f"The files name {same} twice; give each file once.")
        paths[name] = file.path
    for name, path in paths.items():
        if above := parent_in(name, paths):
            raise InvalidArgs(f"{paths[above]} cannot be a file and the folder of {path} at once.")
    return list(paths)


def parent_in(name: str, names: dict[str, str] | set[str]) -> str | None:
    """The nearest folder above a file that is one of these names."""
    while name := name.rpartition("/")[0]:
        if name in names:
            return name
    return None


@dataclass(frozen=True, slots=True)
class _Write:
    """A file to be written. `kept`: what the new text takes over from the old file although it does not have it."""

    path: str
    draft: Draft
    changes: list[Change]
    kept: list[str]


def _prepare_write(file: File, name: str, ctx: Context) -> _Write:
    before = ctx.load_if_exists(file.path)
    old = None if before is None else _decode_replaced(file.path, before)
    new, kept = Content(file.content.removeprefix(BOM), file.content.startswith(BOM)), list[str]()
    # Models do not see line ends and marks, so those of the file are kept.
    if old and "\n" in new.text and "\r" not in new.text and 0 < old.text.count("\n") == old.text.count("\r\n"):
        new = new.with_text(new.text.replace("\n", "\r\n"))
        kept.append("crlf")
    if old and old.has_bom and not new.has_bom:
        new = Content(new.text, has_bom=True)
        kept.append("bom")
    draft = Draft(path=name, before=before, old=old, new=new)
    return _Write(file.path, draft, draft.changes, kept)


def _decode_replaced(path: str, before: Snapshot) -> Content:
    """What is replaced has to be text too: to overwrite an image is most likely a mistake."""
    advice = "To put a text in its place, delete it first."
    try:
        return decode(before.data, path)
    except BinaryFile as error:
        raise BinaryFile(f"{error.message} {advice}") from None
    except FileFailed as error:
        raise FileFailed(errno.EILSEQ, path, f"{error.message} {advice}") from None


def _describe_write(write: _Write, facts: dict[str, Any] | None) -> str:
    if facts is None:
        return f"Unchanged: {write.path} has this text already."
    if facts["kind"] == "added":
        return f"Created {write.path} ({count_lines(facts['additions'])})."
    kept = f", {' and '.join(KEPT[what] for what in write.kept)} kept" if write.kept else ""
    return f"Updated {write.path} (+{facts['additions']} -{facts['deletions']}{kept})."


def apply_operations(operations: Sequence[Operation], ctx: Context, stop: Event, *, is_dry: bool = False) -> Result:
    """Apply a patch: all operations are staged first, then the files are written in one commit, unless it is dry."""
    staged = StagedFiles(ctx.load_if_exists)
    for operation in operations:
        raise_if_canceled(stop)
        _stage(operation, staged, ctx)
    drafts = staged.drafts()
    metadata = diff_facts(drafts)
    raise_if_canceled(stop)
    if not is_dry:
        ctx.workspace.commit(changes_of(drafts), approved=ctx.approved)
    touched = [_mark_and_path(operation) for operation in operations]
    head = "The patch fits, and would update" if is_dry else "Success. Updated"
    lines = [f"{mark} {path}" for each in "AMD" for mark, path in touched if mark == each]
    paths = {path for _, path in touched}
    return Result(
        output="\n".join([f"{head} the following files:", *lines]) + "\n",
        title=touched[0][1] if len(paths) == 1 else f"{len(paths)} files",
        metadata=metadata,
    )


def _stage(operation: Operation, staged: StagedFiles, ctx: Context) -> None:
    path = operation.path
    name = ctx.workspace.name(path)
    match operation:
        case Add(lines=lines):
            staged.add(name, path, "".join(f"{line}\n" for line in lines))
        case Delete():
            staged.delete(name, path)
        case Update(hunks=hunks, move_to=target):
            staged.update(name, path, hunks)
            if target is not None:
                staged.move(name, path, ctx.workspace.name(target), target)


def _mark_and_path(operation: Operation) -> tuple[str, str]:
    match operation:
        case Add(path=path):
            return "A", path
        case Delete(path=path):
            return "D", path
        case Update(path=path, move_to=target):
            return "M", target or path


class PathArgs(BaseModel, extra="forbid"):
    path: str


A = TypeVar("A", bound=PathArgs)


def route_tool(
    args: type[A], *, name: str, description: str, effect: Effect, run: Callable[[A, Context], Awaitable[Result]]
) -> Tool:
    """A tool behind a route under `/v1/sessions/{id}/files`, which models do not see."""
    permission = "read" if effect is Effect.READ else "edit"
    return typed(
        args,
        name=name,
        description=description,
        effect=effect,
        needs=lambda given, scope: touching(scope, permission, [given.path]),
        run=run,
        permission=permission,
        polls=True,
        is_listed=False,
    )
