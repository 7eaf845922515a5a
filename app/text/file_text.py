"""The text in a file's bytes, decoded so that encoding it unchanged gives the same bytes."""

import codecs
import errno
from dataclasses import dataclass, replace

from app.core.errors import BinaryFile, FileFailed, InvalidArgs

# UTF-32 first: its little-endian mark begins with that of UTF-16.
WIDE_BOMS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Content:
    """The text of a file, with its line ends; `has_bom`: a UTF-8 byte order mark precedes it."""

    text: str
    has_bom: bool = False

    def with_text(self, text: str) -> "Content":
        return replace(self, text=text)

    @property
    def data(self) -> bytes:
        try:
            encoded = self.text.encode()
        except UnicodeEncodeError:
            raise InvalidArgs("The new text has characters that cannot be encoded (lone surrogates).") from None
        return codecs.BOM_UTF8 + encoded if self.has_bom else encoded

    @property
    def line_end(self) -> str:
        """The end of the first line. A lone CR ends lines only in a text without LF."""
        first = self.text.find("\n")
        if first < 0:
            return "\r" if "\r" in self.text else "\n"
        return "\r\n" if self.text.endswith("\r", 0, first) else "\n"


def decode(data: bytes, path: str) -> Content:
    """The text of a file that is to be changed. Raises `BinaryFile` or `FileFailed` for anything but UTF-8."""
    for bom, name in WIDE_BOMS:
        if data.startswith(bom):
            raise _not_utf8(path, f"it is {name}")
    has_bom = data.startswith(codecs.BOM_UTF8)
    if b"\0" in data:
        if _is_wide(data):
            raise _not_utf8(path, "it looks like UTF-16 without a byte order mark")
        raise BinaryFile(f"{path} is a binary file, not text; edit tools do not change it.")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode() if has_bom else data.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(path, f"byte {error.start} is invalid; it may be Latin-1 or Windows-1252") from None
    return Content(text, has_bom)


def _is_wide(data: bytes) -> bool:
    """Whether every other byte is NUL, as in UTF-16 with mostly ASCII characters."""
    head = data[:HEAD_BYTES]
    nuls = sorted((head[0::2].count(0), head[1::2].count(0)))
    return len(data) % 2 == 0 and nuls[0] == 0 and nuls[1] > len(head) * 0.4


def _not_utf8(path: str, what: str) -> FileFailed:
    sentence = f"{path} is not UTF-8 ({what}); edit tools would damage it, so convert it first or leave it as it is."
    return FileFailed(errno.EILSEQ, path, sentence)
