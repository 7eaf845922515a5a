import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from threading import Event, Lock
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from app.core.errors import CallError, FileFailed, TooLarge
from app.text import images
from app.text.images import HIGH, Limits, Picture, prepare

SMALL = Limits(16, 5_000_000)
KINDS = ["png", "jpeg", "gif", "webp"]
GPS = b"latitude 48.8584"


def encoded(image: Image.Image, kind: str, **more: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def picture(kind: str, size: tuple[int, int] = (40, 30), mode: str = "RGB", **more: Any) -> bytes:
    """Left half red, right half blue."""
    image = Image.new("RGB", size, "blue")
    image.paste("red", (0, 0, size[0] // 2, size[1]))
    return encoded(image.convert(mode), kind, **more)


def animation(kind: str, size: tuple[int, int] = (20, 20)) -> bytes:
    first, *rest = [Image.new("RGB", size, color) for color in ("red", "blue", "green")]
    return encoded(first, kind, save_all=True, append_images=rest, duration=100)


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[images.ORIENTATION] = orientation
    made[0x010E] = GPS.decode()
    return made


def shown(made: Picture) -> Image.Image:
    image = Image.open(BytesIO(made.data))
    assert (f"image/{(image.format or '').lower()}", image.size) == (made.mime, made.size)
    return image


def header(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and has hardly any data."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    about = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_well_stays_as_it_is(kind: str) -> None:
    data = picture(kind)

    assert prepare(data, "a") == Picture(data=data, mime=f"image/{kind}", size=(40, 30), original_size=(40, 30))


@pytest.mark.parametrize("kind", ["png", "gif", "webp"])
def test_a_small_animation_goes_on_moving(kind: str) -> None:
    data = animation(kind)

    assert prepare(data, "a").data == data


@pytest.mark.parametrize("kind", ["png", "gif", "webp"])
def test_of_a_large_animation_the_first_frame_is_kept(kind: str) -> None:
    made = prepare(animation(kind), "a", SMALL)

    image = shown(made)
    assert (made.is_first_frame, made.is_scaled, getattr(image, "n_frames", 1)) == (True, True, 1)
    assert image.convert("RGB").getpixel((8, 8)) == pytest.approx((255, 0, 0), abs=8)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((2048, 10), (2048, 10)), ((2049, 1), (2048, 1)), ((4096, 1024), (2048, 512)), ((100, 4096), (50, 2048))],
)
def test_the_longer_side_has_a_limit(size: tuple[int, int], expected: tuple[int, int]) -> None:
    made = prepare(picture("png", size), "a")

    assert (made.size, made.original_size, made.is_scaled) == (expected, size, size != expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", [SMALL, Limits(2048, 20)])
def test_what_is_seen_stays_the_same(kind: str, limits: Limits) -> None:
    image = shown(prepare(picture(kind), "a", limits)).convert("RGB")

    width, height = image.size
    assert image.getpixel((1, height // 2)) == pytest.approx((255, 0, 0), abs=12)
    assert image.getpixel((width - 2, height // 2)) == pytest.approx((0, 0, 255), abs=12)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16", "CMYK"])
def test_every_kind_of_pixel_can_be_made_smaller(mode: str) -> None:
    kind = "jpeg" if mode == "CMYK" else "png"

    made = prepare(encoded(Image.new(mode, (40, 30)), kind), "a", SMALL)

    assert (shown(made).size, made.is_reencoded) == ((16, 12), True)


def test_sixteen_bits_of_grey_keep_their_brightness() -> None:
    image = Image.new("I;16", (40, 30), 0x8000)

    assert shown(prepare(encoded(image, "png"), "a", SMALL)).getpixel((5, 5)) == pytest.approx(0x80, abs=1)


def test_what_can_be_seen_through_still_can() -> None:
    image = Image.new("RGBA", (40, 30), (255, 0, 0, 100))

    for limits in (SMALL, Limits(2048, 60)):
        made = shown(prepare(encoded(image, "png"), "a", limits))
        assert made.convert("RGBA").getpixel((5, 5)) == pytest.approx((255, 0, 0, 100), abs=4)


def test_it_is_seen_as_the_camera_was_held(subtests: pytest.Subtests) -> None:
    """What the camera saw first, red here, is in this corner when the picture is the right way up."""
    orientation_cases: list[tuple[int, tuple[int, int]]] = [
        (1, (0, 0)),
        (2, (1, 0)),
        (3, (1, 1)),
        (4, (0, 1)),
        (5, (0, 0)),
        (6, (1, 0)),
        (7, (1, 1)),
        (8, (0, 1)),
    ]
    for kind in ["jpeg", "png", "webp"]:
        for orientation, corner in orientation_cases:
            with subtests.test(kind=kind, orientation=orientation, corner=corner):
                image = Image.new("RGB", (40, 32), "blue")
                image.paste("red", (0, 0, 16, 16))

                made = prepare(encoded(image, kind, exif=exif(orientation)), "a")

                pixels = shown(made).convert("RGB")
                places = {
                    (x, y): (x * (pixels.width - 8) + 4, y * (pixels.height - 8) + 4) for x in (0, 1) for y in (0, 1)
                }
                seen = [
                    place
                    for place, point in places.items()
                    if pixels.getpixel(point) == pytest.approx((255, 0, 0), abs=12)
                ]
                size = (40, 32) if orientation < images.FIRST_SWAPPED else (32, 40)
                assert (seen, made.size, made.original_size, made.is_rotated) == ([corner], size, size, orientation > 1)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_what_is_written_anew_tells_nothing_but_its_pixels(kind: str) -> None:
    data = picture(kind, exif=exif(1), icc_profile=b"a profile" * 20, comment=b"a comment")
    assert GPS in data

    for made in (prepare(data, "a", SMALL), prepare(picture(kind, exif=exif(6)), "a")):
        assert made.is_reencoded
        assert [
            word for word in (GPS, b"Exif", b"EXIF", b"a profile", b"a comment", b"iCCP") if word in made.data
        ] == []


def test_exif_that_cannot_be_read_says_nothing() -> None:
    data = picture("jpeg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12\0\x03")

    assert prepare(data, "a").data == data


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_file_that_is_too_large_takes_a_smaller_format_and_then_fewer_pixels(mode: str) -> None:
    noise = Image.merge(mode, [Image.effect_noise((200, 200), 90) for _ in mode])
    data = encoded(noise, "png")
    small = "jpeg" if mode == "RGB" else "webp"

    other = prepare(data, "a", Limits(2048, len(data) // 2))
    fewer = prepare(data, "a", Limits(2048, 4000))

    assert (other.mime, other.size, other.is_scaled, other.is_reencoded) == (f"image/{small}", (200, 200), False, True)
    assert (fewer.mime, fewer.is_scaled, len(fewer.data) <= 4000) == (f"image/{small}", True, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.2, 0.6])
def test_what_is_cut_off_is_refused(kind: str, part: float) -> None:
    data = encoded(Image.merge("RGB", [Image.effect_noise((64, 64), 90)] * 3), kind)

    with pytest.raises(FileFailed, match=f"^a begins like image/{kind}, but is broken or cut off") as caught:
        prepare(data[: int(len(data) * part)], "a")

    assert caught.value.code == "EINVAL"


@pytest.mark.parametrize("data", [b"", b"text", b"BM\0\0\0\0", b"\0\0\0\x1cftypavif", b"II*\0", b"%PDF-1.4"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(FileFailed, match=r"^a is not a PNG, JPEG, GIF or WebP image by its content") as caught:
        prepare(data, "a")

    assert caught.value.code == "EINVAL"


@pytest.mark.parametrize("data", [b"<svg>", b'<?xml version="1.0"?>\n<!-- x --><svg xmlns="x">', b"<svg:svg \n>"])
def test_a_drawing_is_sent_to_be_read_as_text(data: bytes) -> None:
    with pytest.raises(FileFailed, match=r"^a is an SVG drawing, .* read_file"):
        prepare(data, "a")


@pytest.mark.parametrize("size", [(8001, 8000), (100_000, 100_000), (2**31 - 1, 2**31 - 1)])
def test_a_bomb_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(TooLarge, match="pixels"):
        prepare(header(*size), "a")


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_each_format_has_its_bomb(kind: str) -> None:
    data = bytearray(animation(kind))
    if kind == "gif":
        data[6:10] = struct.pack("<HH", 65_535, 65_535)
    else:
        data[24:30] = (16_000).to_bytes(3, "little") * 2

    with pytest.raises(TooLarge):
        prepare(bytes(data), "a")


broken = st.tuples(
    st.sampled_from([picture(kind) for kind in KINDS] + [animation(kind) for kind in ("png", "gif", "webp")]),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=4)), min_size=1, max_size=5),
    st.integers(1, 4000),
)


@settings(max_examples=200)
@given(made=broken)
def test_broken_images_are_typed_errors_or_images(made: tuple[bytes, list[tuple[int, bytes]], int]) -> None:
    original, changes, size = made
    data = bytearray(original)
    for place, new in changes:
        data[place : place + len(new)] = new

    for limits in (HIGH, SMALL):
        try:
            shown(prepare(bytes(data[:size]), "a", limits))
        except CallError as error:
            assert error.code in ("EINVAL", "TooLarge")  # noqa: PT017


@pytest.mark.parametrize(("large", "most"), [(100, 1), (10**9, 4)])
def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch, large: int, most: int) -> None:
    """Each waits inside until as many are there as can be, or for a moment."""
    seen, make, under_way = list[int](), images._convert, 0
    count, full = Lock(), Event()

    def prepared(*about: Any) -> Picture:
        nonlocal under_way
        with count:
            under_way += 1
            seen.append(under_way)
            if under_way == 4:
                full.set()
        full.wait(5 if most == 4 else 0.02)
        with count:
            under_way -= 1
        return make(*about)

    monkeypatch.setattr(images, "LARGE_PIXELS", large)
    monkeypatch.setattr(images, "_convert", prepared)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: prepare(picture("png"), "a"), range(4)))

    assert (len(made), max(seen)) == (4, most)
