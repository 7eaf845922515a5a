"""write_files: make or replace several whole files, all of them or none."""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from pydantic import BaseModel, Field

from app.core.errors import BinaryFile, FileFailed, InvalidArgs
from app.core.files import touching
from app.core.llm_models import takes_patches
from app.core.ports import Change, PathScope, Snapshot
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, raise_if_canceled, typed
from app.text.edit.draft import MARK, Draft, facts, of_file
from app.text.file_text import Content

KEPT = {"crlf": "its CRLF line ends", "bom": "its byte order mark"}


class File(BaseModel, extra="forbid"):
    """One file and all it is to say."""

    path: str = Field(description="File to make or replace: relative to the workspace, or absolute and inside it.")
    content: str = Field(description="The whole text of the file.")


class Args(BaseModel, extra="forbid"):
    explanation: str = Field(description="Step by step, what is changed and why.")
    files: list[File] = Field(min_length=1, description="The files, each of them once and with its whole text.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    names_of(args.files, scope)
    return touching(scope, "edit", [file.path for file in args.files])


async def run(args: Args, ctx: Context) -> Result:
    return await ctx.in_thread_uncancelable(lambda stop: write(args.files, ctx, stop))


tool = typed(
    Args,
    name="write_files",
    description=(
        "Create or update one or more files, each by its whole text. Folders are made where they are missing. Either"
        " all files are written or none."
    ),
    effect=Effect.WRITE,
    needs=needs,
    run=run,
    permission="edit",
    suits=lambda audience: not takes_patches(audience.model),
)


def names_of(files: Sequence[File], scope: PathScope) -> list[str]:
    """The canonical names of the files; none of them is there twice, or a folder for another."""
    given: dict[str, str] = {}
    for file in files:
        name = scope.name(file.path)
        if name in given:
            same = file.path if given[name] == file.path else f"{given[name]} and {file.path}, which are the same file,"
            raise InvalidArgs(f"The files name {same} twice; give each file once.")
        given[name] = file.path
    for name, path in given.items():
        above = next((parent for parent in _parents(name) if parent in given), None)
        if above is not None:
            raise InvalidArgs(f"{given[above]} cannot be a file and the folder of {path} at once.")
    return list(given)


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def write(files: Sequence[File], ctx: Context, stop: Event) -> Result:
    """Write these files by one commit, and tell of each what became of it."""
    names = names_of(files, ctx.workspace)
    sheets = [_sheet(file, name, ctx) for file, name in zip(files, names, strict=True)]
    raise_if_canceled(stop)
    ctx.workspace.commit([change for sheet in sheets for change in sheet.changes], approved=ctx.approved)
    about = facts(sheet.draft for sheet in sheets if sheet.changes)
    kept = {sheet.draft.path: sheet.kept for sheet in sheets if sheet.kept}
    counts = {file["path"]: file for file in about["files"]}
    return Result(
        output="\n".join(_said(sheet, counts.get(sheet.draft.path)) for sheet in sheets),
        title=files[0].path if len(files) == 1 else f"{len(files)} files",
        metadata=about | {"kept": kept} if kept else about,
    )


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A file that is to be written: what changes, and what of the file before is kept though nobody asked."""

    path: str
    draft: Draft
    changes: list[Change]
    kept: list[str]


def _sheet(file: File, name: str, ctx: Context) -> _Sheet:
    before = ctx.load_if_exists(file.path)
    old = None if before is None else _text_of(file.path, before)
    new, kept = _fitted(file.content, old)
    draft = Draft(path=name, before=before, old=old, new=new)
    return _Sheet(file.path, draft, draft.changes, kept)


def _text_of(path: str, before: Snapshot) -> Content:
    """What is replaced has to be text too: whoever writes over an image surely meant another file."""
    advice = "To put a text in its place, delete it first."
    try:
        return of_file(path, before)
    except BinaryFile as error:
        raise BinaryFile(f"{error.message} {advice}") from None
    except FileFailed as error:
        raise FileFailed(errno.EILSEQ, path, f"{error.message} {advice}") from None


def _fitted(given: str, old: Content | None) -> tuple[Content, list[str]]:
    """The given text with the line ends and the mark of the file, which no model sees; and which of them are kept."""
    new, kept = Content(given.removeprefix(MARK), given.startswith(MARK)), list[str]()
    if old is None:
        return new, kept
    if "\n" in new.text and "\r" not in new.text and 0 < old.text.count("\n") == old.text.count("\r\n"):
        new = new.with_text(new.text.replace("\n", "\r\n"))
        kept.append("crlf")
    if old.has_mark and not new.has_mark:
        new = Content(new.text, has_mark=True)
        kept.append("bom")
    return new, kept


def _said(sheet: _Sheet, about: dict[str, Any] | None) -> str:
    if about is None:
        return f"Unchanged: {sheet.path} is already as given."
    if about["kind"] == "added":
        count = about["additions"]
        return f"Created {sheet.path} ({count} {'line' if count == 1 else 'lines'})."
    kept = f", {' and '.join(KEPT[what] for what in sheet.kept)} kept" if sheet.kept else ""
    return f"Updated {sheet.path} (+{about['additions']} -{about['deletions']}{kept})."
