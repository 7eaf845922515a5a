import asyncio
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.core.errors import FileFailed, InvalidArgs, OutsideWorkspace, TooLarge
from app.core.results import Result, attach
from app.core.rules import Need
from app.core.tools import Context, Effect
from app.text import images
from app.tools.files.view_image import tool


async def view(ctx: Context, path: str, **more: Any) -> Result:
    async with asyncio.timeout(30):
        return await tool.run(tool.parse({"path": path, **more}), ctx)


def save(path: Path, size: tuple[int, int], kind: str = "png", **more: Any) -> bytes:
    file = BytesIO()
    Image.new("RGB", size, "red").save(file, kind, **more)
    path.write_bytes(file.getvalue())
    return file.getvalue()


async def test_a_small_image_is_shown_as_it_is(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()
    data = save(workspace / "d/a.png", (40, 30))

    assert await view(ctx, "d/a.png") == Result(
        output=f"a.png: image/png, 40 x 30 pixels, {len(data)} bytes.",
        title="d/a.png",
        metadata={
            **{"mime": "image/png", "size": len(data), "width": 40, "height": 30},
            **{"original_width": 40, "original_height": 30, "scaled": False, "rotated": False},
        },
        attachments=(attach(data, "image/png", "a.png"),),
    )


async def test_a_large_image_is_scaled_down_unless_its_pixels_are_wanted(ctx: Context, workspace: Path) -> None:
    save(workspace / "a.png", (4000, 20))

    high, original = await view(ctx, "a.png"), await view(ctx, "a.png", detail="original")

    size = high.metadata["size"]
    assert high.output == (
        f"a.png: image/png, 2048 x 10 pixels, {size} bytes. Scaled down from 4000 x 20."
        " Encoded again, without EXIF and other metadata."
    )
    assert original.output.startswith("a.png: image/png, 4000 x 20 pixels")
    assert original.metadata["scaled"] is False


async def test_an_image_is_turned_upright(ctx: Context, workspace: Path) -> None:
    exif = Image.Exif()
    exif[images.ORIENTATION] = 6
    save(workspace / "a.jpg", (40, 30), "jpeg", exif=exif)

    result = await view(ctx, "a.jpg")

    assert result.output.startswith("a.jpg: image/jpeg, 30 x 40 pixels")
    assert result.output.endswith(" Turned upright. Encoded again, without EXIF and other metadata.")
    assert (result.metadata["rotated"], result.metadata["scaled"]) == (True, False)


async def test_an_animation_that_is_large_stands_still(ctx: Context, workspace: Path) -> None:
    frames = [Image.new("RGB", (3000, 10), color) for color in ("red", "blue")]
    frames[0].save(workspace / "a.gif", save_all=True, append_images=frames[1:])

    result = await view(ctx, "a.gif")

    assert "image/png, 2048 x 7 pixels" in result.output
    assert "Only the first frame of the animation is shown." in result.output


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"just text", r"a\.png is not a PNG, JPEG, GIF or WebP image by its content"),
        (b"<svg></svg>", r"a\.png is an SVG drawing"),
        (b"\x89PNG\r\n\x1a\n", r"a\.png begins like image/png, but is broken"),
    ],
)
async def test_what_cannot_be_shown_is_refused(ctx: Context, workspace: Path, data: bytes, sentence: str) -> None:
    (workspace / "a.png").write_bytes(data)

    with pytest.raises(FileFailed, match=sentence) as caught:
        await view(ctx, "a.png")

    assert caught.value.code == "EINVAL"


async def test_a_file_has_a_largest_size(ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_INPUT_BYTES", 50)
    save(workspace / "a.png", (40, 30))

    with pytest.raises(TooLarge, match=r"a\.png has more than 50 bytes"):
        await view(ctx, "a.png")


async def test_a_missing_image_is_answered_with_its_neighbours(ctx: Context, workspace: Path) -> None:
    save(workspace / "logo.png", (4, 3))

    with pytest.raises(FileFailed, match=r"^logo\.pgn does not exist\. Did you mean logo\.png\?$") as caught:
        await view(ctx, "logo.pgn")

    assert caught.value.code == "ENOENT"


async def test_a_folder_is_no_image(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()

    with pytest.raises(FileFailed) as caught:
        await view(ctx, "d")

    assert caught.value.code == "EISDIR"


async def test_it_stays_in_the_workspace(ctx: Context) -> None:
    with pytest.raises(OutsideWorkspace):
        await view(ctx, "/usr/share/pixmaps/x.png")


async def test_the_image_that_was_approved_is_the_one_that_is_shown(ctx: Context, workspace: Path) -> None:
    save(workspace / "a.png", (4, 3))

    with pytest.raises(FileFailed) as caught:
        await view(replace(ctx, approved=frozenset({"b.png"})), "a.png")

    assert caught.value.code == "ESTALE"


def test_it_reads_and_needs_the_image_by_its_canonical_name(ctx: Context, workspace: Path) -> None:
    (workspace / "real.png").touch()
    (workspace / "link.png").symlink_to("real.png")

    assert tool.effect is Effect.READ
    assert tool.needs(tool.parse({"path": "link.png"}), ctx.workspace) == [Need("read", "real.png")]


@pytest.mark.parametrize("arguments", [{}, {"path": "a", "detail": "low"}, {"path": "a", "scale": 2}])
def test_a_mistake_is_a_plain_mistake(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgs):
        tool.parse(arguments)


def test_pillow_is_not_loaded_before_it_is_needed() -> None:
    found = "import sys, app.tools; print([name for name in sys.modules if name.split('.')[0] == 'PIL'])"

    assert subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True).stdout == "[]\n"
