"""Images as models can take them: known by their content, the right way up, and no larger than need be.

A picture that is well as it is stays as it is, byte for byte. One that is turned or made smaller is written anew, and
then nothing but its pixels is kept: no EXIF, no place, no colour profile, and of an animation the first frame.
"""

import errno
import re
import struct
import warnings
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING

from app.core.errors import FileFailed, TooLarge

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

MOST_INPUT = 32 * 1024 * 1024
# What takes up to a quarter of a gigabyte once it is decoded; WebP is decoded in several copies.
MOST_PIXELS = {"image/png": 64_000_000, "image/jpeg": 64_000_000, "image/gif": 64_000_000, "image/webp": 20_000_000}
# So many are worth waiting for: of larger images one is decoded at a time.
LARGE = 8_000_000
QUALITY = 85
SHRINK = 0.7
LEAST_SIDE = 64

SIGNS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
ORIENTATION = 0x0112
# From this orientation on, width and height change places.
SWAPPING = 5
# What Pillow raises when the bytes are not what they should be; warnings, where those are errors.
BROKEN = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, ArithmeticError),
    *(struct.error, zlib.error, Warning),
)
_SVG = re.compile(rb"<(?:\w+:)?svg[\s>]", re.IGNORECASE)
_HEAD = 4096
_large_ones = Lock()


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the longer side may be, in pixels, and how large the file."""

    side: int
    size: int


HIGH = Limits(2048, 5_000_000)
ORIGINAL = Limits(8000, 20_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image to be shown, and what was done to it. `before` is the size it had, the right way up."""

    data: bytes
    mime: str
    size: tuple[int, int]
    before: tuple[int, int]
    is_turned: bool = False
    is_anew: bool = False
    is_still: bool = False

    @property
    def is_scaled(self) -> bool:
        return self.size != self.before


def kind_of(head: bytes) -> str | None:
    """The type of an image by its first bytes; None for what is no image, or none that models take."""
    return next((mime for mime, sign in SIGNS.items() if sign.match(head)), None)


def prepare(data: bytes, path: str, limits: Limits = HIGH) -> Picture:
    """Check an image and bring it into the limits. Raises `FileFailed` (EINVAL) for what is none, and `TooLarge`."""
    mime = kind_of(data)
    if mime is None:
        raise _unknown(data, path)
    try:
        with _opened(data, mime) as image:
            width, height = image.size
            if width * height > MOST_PIXELS[mime]:
                raise TooLarge(f"{path} has {width} x {height} pixels; up to {MOST_PIXELS[mime]:,} in all are taken.")
            with _large_ones if width * height > LARGE else nullcontext():
                return _prepared(image, data, mime, limits)
    except (MemoryError, _bomb()):
        raise TooLarge(f"{path} takes too much memory to decode.") from None
    except BROKEN:
        sentence = f"{path} begins like {mime}, but is broken or cut off; make the file anew."
        raise FileFailed(errno.EINVAL, path, sentence) from None


def _prepared(image: "ImageFile", data: bytes, mime: str, limits: Limits) -> Picture:
    width, height = image.size
    target = _within(image.size, limits.side)
    is_animated = bool(getattr(image, "is_animated", False))
    if target != image.size:
        image.draft(None, target)  # a JPEG can be decoded smaller at once
    image.load()
    turn = _turn(image)
    before = (height, width) if turn is not None and turn >= SWAPPING else (width, height)
    if target == (width, height) and turn is None and len(data) <= limits.size:
        return Picture(data=data, mime=mime, size=before, before=before)
    pixels = _turned(_resized(_plain(image), target), turn)
    encoded, kind, size = _fitted(pixels, mime, limits.size)
    return Picture(
        data=encoded,
        mime=kind,
        size=size,
        before=before,
        is_turned=turn is not None,
        is_anew=True,
        is_still=is_animated,
    )


def _opened(data: bytes, mime: str) -> "ImageFile":
    """By the one reader of its format. Pillow takes memory, so it is loaded with the first image."""
    from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    # Its warnings are about EXIF and animations that are not well, which is no matter here.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    readers: dict[str, type[ImageFile]] = {
        "image/png": PngImagePlugin.PngImageFile,
        "image/jpeg": JpegImagePlugin.JpegImageFile,
        "image/gif": GifImagePlugin.GifImageFile,
        "image/webp": WebPImagePlugin.WebPImageFile,
    }
    return readers[mime](BytesIO(data))


def _bomb() -> type[Exception]:
    from PIL.Image import DecompressionBombError

    return DecompressionBombError


def _within(size: tuple[int, int], side: int) -> tuple[int, int]:
    width, height = size
    scale = min(1.0, side / max(size))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _turn(image: "Image") -> int | None:
    """How the camera was held, if not upright. EXIF that cannot be read says nothing."""
    try:
        found = image.getexif().get(ORIENTATION)
    except BROKEN:
        return None
    return found if isinstance(found, int) and 2 <= found <= 8 else None


def _turned(image: "Image", turn: int | None) -> "Image":
    from PIL.Image import Transpose

    ways = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image if turn is None else image.transpose(ways[turn])


def _plain(image: "Image") -> "Image":
    """In one of the three modes that every format here can write: grey, colour, colour with transparency."""
    if image.mode.startswith("I"):  # 16 bits of grey, of which the upper half can be seen
        image.info = {}
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    wanted = "RGBA" if image.has_transparency_data else "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def _resized(image: "Image", size: tuple[int, int]) -> "Image":
    from PIL.Image import Resampling

    return image if image.size == size else image.resize(size, Resampling.LANCZOS, reducing_gap=2.0)


def _fitted(image: "Image", mime: str, most: int) -> tuple[bytes, str, tuple[int, int]]:
    """The image as a file of at most so many bytes: in its own format, in a smaller one, in ever fewer pixels."""
    small = "webp" if image.mode == "RGBA" else "jpeg"
    formats = {"image/jpeg": ["jpeg"], "image/webp": ["webp"]}.get(mime, ["png", small])
    while True:
        for name in formats:
            encoded = _encoded(image, name)
            if len(encoded) <= most or (name == formats[-1] and max(image.size) <= LEAST_SIDE):
                return encoded, f"image/{name}", image.size
        image = _resized(image, _within(image.size, int(max(image.size) * SHRINK)))


def _encoded(image: "Image", name: str) -> bytes:
    image.info = {}  # comments and profiles would be written along
    file = BytesIO()
    image.save(file, name, **({} if name == "png" else {"quality": QUALITY}))
    return file.getvalue()


def _unknown(data: bytes, path: str) -> FileFailed:
    if _SVG.search(data[:_HEAD]):
        advice = "is an SVG drawing, which models cannot see; read it as text with read_file, or convert it to PNG"
    else:
        advice = "is no PNG, JPEG, GIF or WebP image by its content; convert it to one, or use read_file for text"
    return FileFailed(errno.EINVAL, path, f"{path} {advice}.")
