"""view_image: a picture for the model to see."""

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
from app.tools.files.list_dir import advising

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
    picture = await advising(args.path, ctx, ctx.in_thread(lambda stop: _load(args, ctx)))
    filename = os.path.basename(args.path)
    return Result(
        output=_told(filename, picture),
        title=args.path,
        metadata=facts(picture),
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


def facts(picture: Picture) -> dict[str, object]:
    """What frontends are told of a picture, whichever tool shows it."""
    return {
        "mime": picture.mime,
        "size": len(picture.data),
        "width": picture.size[0],
        "height": picture.size[1],
        "original_width": picture.before[0],
        "original_height": picture.before[1],
        "scaled": picture.is_scaled,
        "rotated": picture.is_turned,
    }


def _load(args: Args, ctx: Context) -> Picture:
    found = ctx.workspace.load(args.path, approved=ctx.approved, limit=images.MOST_INPUT)
    return images.prepare(found.data, args.path, LIMITS[args.detail])


def _told(filename: str, picture: Picture) -> str:
    width, height = picture.size
    said = [f"{filename}: {picture.mime}, {width} x {height} pixels, {len(picture.data):,} bytes."]
    if picture.is_scaled:
        said.append(f"Scaled down from {picture.before[0]} x {picture.before[1]}.")
    if picture.is_turned:
        said.append("Turned upright.")
    if picture.is_still:
        said.append("Only the first frame of the animation is shown.")
    if picture.is_anew:
        said.append("Written anew, without EXIF and other metadata.")
    return " ".join(said)
