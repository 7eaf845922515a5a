"""Contents: the text in a file's bytes, such that writing it back unchanged gives the same bytes."""

import codecs
import errno
from dataclasses import dataclass, replace

from app.core.errors import BinaryFile, FileFailed, InvalidArgs

# The longer marks first: that of UTF-16 begins that of UTF-32.
MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
SNIFFED = 4096


@dataclass(frozen=True, slots=True)
class Content:
    """What stands in a text file, line ends as they are, and whether a mark of UTF-8 comes before it."""

    text: str
    has_mark: bool = False

    def with_text(self, text: str) -> "Content":
        return replace(self, text=text)

    @property
    def data(self) -> bytes:
        try:
            encoded = self.text.encode()
        except UnicodeEncodeError:
            raise InvalidArgs("The new text has characters that cannot be written (lone surrogates).") from None
        return codecs.BOM_UTF8 + encoded if self.has_mark else encoded

    @property
    def line_end(self) -> str:
        """How lines end here: as the first one does. A lone return ends lines only where no line feed is."""
        first = self.text.find("\n")
        if first < 0:
            return "\r" if "\r" in self.text else "\n"
        return "\r\n" if self.text.endswith("\r", 0, first) else "\n"


def read(data: bytes, path: str) -> Content:
    """The text of a file that is to be changed. What is not UTF-8 is refused, never mended."""
    for mark, name in MARKS:
        if data.startswith(mark):
            raise _foreign(path, f"it is {name}")
    has_mark = data.startswith(codecs.BOM_UTF8)
    if b"\0" in data:
        raise _foreign(path, "it looks like UTF-16 without a mark") if _is_wide(data) else _binary(path)
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode() if has_mark else data.decode()
    except UnicodeDecodeError as error:
        raise _foreign(path, f"byte {error.start} cannot be; it may be Latin-1 or Windows-1252") from None
    return Content(text, has_mark)


def _is_wide(data: bytes) -> bool:
    """Whether every other byte is a NUL, as in UTF-16 that says mostly what ASCII can say."""
    head = data[:SNIFFED]
    sides = sorted((head[0::2].count(0), head[1::2].count(0)))
    return len(data) % 2 == 0 and sides[0] == 0 and sides[1] > len(head) * 0.4


def _binary(path: str) -> BinaryFile:
    return BinaryFile(f"{path} is a binary file, not text; edit tools do not change it.")


def _foreign(path: str, what: str) -> FileFailed:
    sentence = f"{path} is not UTF-8 ({what}); edit tools would spoil it, so convert it first or leave it as it is."
    return FileFailed(errno.EILSEQ, path, sentence)
