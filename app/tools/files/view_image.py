"""view_image: an image for the model to see."""

import os
from typing import Literal

from pydantic import BaseModel, Field

from app.core.files import touching
from app.core.ports import PathScope
from app.core.results import Result, attach
from app.core.rules import Need
from app.core.tools import Context, Effect, typed
from app.text import images
from app.text.images import Picture
from app.text.similar_paths import suggest_if_missing

LIMITS = {"high": images.HIGH, "original": images.ORIGINAL}


class Args(BaseModel, extra="forbid"):
    path: str = Field(description="Image to look at: relative to the workspace, or absolute and inside it.")
    detail: Literal["high", "original"] = Field(
        default="high",
        description="`high` scales an image down to 2048 pixels; `original` leaves it as large as it is, up to 8000.",
    )


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.path])


async def run(args: Args, ctx: Context) -> Result:
    picture = await suggest_if_missing(args.path, ctx, ctx.in_thread(lambda stop: _load(args, ctx)))
    filename = os.path.basename(args.path)
    return Result(
        output=_describe(filename, picture),
        title=args.path,
        metadata=picture.facts(),
        attachments=(attach(picture.data, picture.mime, filename),),
    )


tool = typed(
    Args,
    name="view_image",
    description="Look at a PNG, JPEG, GIF or WebP image. It is turned upright, and scaled down when it is large.",
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
)


def _load(args: Args, ctx: Context) -> Picture:
    file = ctx.workspace.load(args.path, approved=ctx.approved, limit=images.MAX_INPUT_BYTES)
    return images.prepare(file.data, args.path, LIMITS[args.detail])


def _describe(filename: str, picture: Picture) -> str:
    width, height = picture.size
    notes = [f"{filename}: {picture.mime}, {width} x {height} pixels, {len(picture.data):,} bytes."]
    if picture.is_scaled:
        notes.append(f"Scaled down from {picture.original_size[0]} x {picture.original_size[1]}.")
    if picture.is_rotated:
        notes.append("Turned upright.")
    if picture.is_first_frame:
        notes.append("Only the first frame of the animation is shown.")
    if picture.is_reencoded:
        notes.append("Encoded again, without EXIF and other metadata.")
    return " ".join(notes)
