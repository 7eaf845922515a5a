"""Images for models: recognized by their content, turned upright and scaled down to the limits.

An image within the limits stays as it is, byte for byte. One that is rotated or scaled is encoded again, and keeps only
its pixels: no EXIF, no location, no colour profile, and of an animation only the first frame.
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
from typing import TYPE_CHECKING, Any

from app.core.errors import FileFailed, TooLarge

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

MAX_INPUT_BYTES = 32 * 1024 * 1024
# Up to a quarter of a gigabyte once decoded; WebP is decoded in several copies.
MAX_PIXELS = {"image/png": 64_000_000, "image/jpeg": 64_000_000, "image/gif": 64_000_000, "image/webp": 20_000_000}
# Of images with more pixels than this, one is decoded at a time.
LARGE_PIXELS = 8_000_000
QUALITY = 85
SHRINK = 0.7
MIN_SIDE = 64

SIGNATURES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
ORIENTATION = 0x0112
# From this EXIF orientation on, width and height are swapped.
FIRST_SWAPPED = 5
# What Pillow raises for invalid data; `Warning` where warnings are errors.
BROKEN = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, ArithmeticError),
    *(struct.error, zlib.error, Warning),
)
_SVG = re.compile(rb"<(?:\w+:)?svg[\s>]", re.IGNORECASE)
_HEAD_BYTES = 4096
_large_lock = Lock()


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest side in pixels, and the size of the file."""

    side: int
    max_bytes: int


HIGH = Limits(2048, 5_000_000)
ORIGINAL = Limits(8000, 20_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image to show, and what was done to it. `original_size` is the size it had, upright."""

    data: bytes
    mime: str
    size: tuple[int, int]
    original_size: tuple[int, int]
    is_rotated: bool = False
    is_reencoded: bool = False
    is_first_frame: bool = False

    @property
    def is_scaled(self) -> bool:
        return self.size != self.original_size

    def facts(self) -> dict[str, Any]:
        """The metadata of a result that shows it."""
        return {
            "mime": self.mime,
            "size": len(self.data),
            "width": self.size[0],
            "height": self.size[1],
            "original_width": self.original_size[0],
            "original_height": self.original_size[1],
            "scaled": self.is_scaled,
            "rotated": self.is_rotated,
        }


def kind_of(head: bytes) -> str | None:
    """The media type of an image by its first bytes; None if it is not an image that models accept."""
    return next((mime for mime, signature in SIGNATURES.items() if signature.match(head)), None)


def prepare(data: bytes, path: str, limits: Limits = HIGH) -> Picture:
    """Check an image and bring it within the limits. Raises `FileFailed` (EINVAL) if it is not one, and `TooLarge`."""
    mime = kind_of(data)
    if mime is None:
        raise _not_an_image(data, path)
    try:
        with _open(data, mime) as image:
            width, height = image.size
            if width * height > MAX_PIXELS[mime]:
                raise TooLarge(f"{path} has {width} x {height} pixels; at most {MAX_PIXELS[mime]:,} are accepted.")
            with _large_lock if width * height > LARGE_PIXELS else nullcontext():
                return _convert(image, data, mime, limits)
    except (MemoryError, _decompression_bomb_error()):
        raise TooLarge(f"{path} takes too much memory to decode.") from None
    except BROKEN:
        sentence = f"{path} begins like {mime}, but is broken or cut off; create the file again."
        raise FileFailed(errno.EINVAL, path, sentence) from None


def _convert(image: "ImageFile", data: bytes, mime: str, limits: Limits) -> Picture:
    width, height = image.size
    target = _scale_to(image.size, limits.side)
    is_animated = bool(getattr(image, "is_animated", False))
    if target != image.size:
        image.draft(None, target)  # a JPEG can be decoded smaller at once
    image.load()
    turn = _orientation(image)
    upright = (height, width) if turn is not None and turn >= FIRST_SWAPPED else (width, height)
    if target == (width, height) and turn is None and len(data) <= limits.max_bytes:
        return Picture(data=data, mime=mime, size=upright, original_size=upright)
    pixels = _rotate(_resize(_to_common_mode(image), target), turn)
    encoded, kind, size = _fit(pixels, mime, limits.max_bytes)
    return Picture(
        data=encoded,
        mime=kind,
        size=size,
        original_size=upright,
        is_rotated=turn is not None,
        is_reencoded=True,
        is_first_frame=is_animated,
    )


def _open(data: bytes, mime: str) -> "ImageFile":
    """Open it with the reader of its format only. Pillow takes memory, so it is imported with the first image."""
    from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    # Its warnings are about invalid EXIF and animations, which do not matter here.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    readers: dict[str, type[ImageFile]] = {
        "image/png": PngImagePlugin.PngImageFile,
        "image/jpeg": JpegImagePlugin.JpegImageFile,
        "image/gif": GifImagePlugin.GifImageFile,
        "image/webp": WebPImagePlugin.WebPImageFile,
    }
    return readers[mime](BytesIO(data))


def _decompression_bomb_error() -> type[Exception]:
    from PIL.Image import DecompressionBombError

    return DecompressionBombError


def _scale_to(size: tuple[int, int], side: int) -> tuple[int, int]:
    width, height = size
    scale = min(1.0, side / max(size))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _orientation(image: "Image") -> int | None:
    """The EXIF orientation, if not upright; None if EXIF is missing or invalid."""
    try:
        found = image.getexif().get(ORIENTATION)
    except BROKEN:
        return None
    return found if isinstance(found, int) and 2 <= found <= 8 else None


def _rotate(image: "Image", turn: int | None) -> "Image":
    from PIL.Image import Transpose

    operations = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image if turn is None else image.transpose(operations[turn])


def _to_common_mode(image: "Image") -> "Image":
    """In one of the three modes that every format here can write: L, RGB, RGBA."""
    if image.mode.startswith("I"):  # 16-bit grey, of which only the upper half is visible
        image.info = {}
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    mode = "RGBA" if image.has_transparency_data else "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _resize(image: "Image", size: tuple[int, int]) -> "Image":
    from PIL.Image import Resampling

    return image if image.size == size else image.resize(size, Resampling.LANCZOS, reducing_gap=2.0)


def _fit(image: "Image", mime: str, max_bytes: int) -> tuple[bytes, str, tuple[int, int]]:
    """Encode it within `max_bytes`: in its own format, in a smaller one, then in fewer and fewer pixels."""
    small = "webp" if image.mode == "RGBA" else "jpeg"
    formats = {"image/jpeg": ["jpeg"], "image/webp": ["webp"]}.get(mime, ["png", small])
    while True:
        for name in formats:
            encoded = _encode(image, name)
            if len(encoded) <= max_bytes or (name == formats[-1] and max(image.size) <= MIN_SIDE):
                return encoded, f"image/{name}", image.size
        image = _resize(image, _scale_to(image.size, int(max(image.size) * SHRINK)))


def _encode(image: "Image", name: str) -> bytes:
    image.info = {}  # else comments and profiles are written too
    file = BytesIO()
    image.save(file, name, **({} if name == "png" else {"quality": QUALITY}))
    return file.getvalue()


def _not_an_image(data: bytes, path: str) -> FileFailed:
    if _SVG.search(data[:_HEAD_BYTES]):
        advice = "is an SVG drawing, which models cannot see; read it as text with read_file, or convert it to PNG"
    else:
        advice = "is not a PNG, JPEG, GIF or WebP image by its content; convert it to one, or use read_file for text"
    return FileFailed(errno.EINVAL, path, f"{path} {advice}.")
