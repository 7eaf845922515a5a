"""Contents: the text in a file's bytes, such that writing it back unchanged gives the same bytes."""

import codecs
import errno
import re
from dataclasses import dataclass, replace

from app.core.errors import BinaryFile, FileFailed, InvalidArgs

# The longer marks first: that of UTF-16 begins that of UTF-32.
MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_END = re.compile(r"\r\n|\n|\r")


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
        """How lines end here: as the first one does."""
        found = _END.search(self.text)
        return found.group() if found else "\n"


def read(data: bytes, path: str) -> Content:
    """The text of a file that is to be changed. What is not UTF-8 is refused, never mended."""
    for mark, name in MARKS:
        if data.startswith(mark):
            raise _foreign(path, f"it is {name}")
    has_mark = data.startswith(codecs.BOM_UTF8)
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode() if has_mark else data.decode()
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise _binary(path) from None
        raise _foreign(path, f"byte {error.start} is none, it may be Latin-1 or Windows-1252") from None
    if "\0" in text:
        raise _binary(path)
    return Content(text, has_mark)


def _binary(path: str) -> BinaryFile:
    return BinaryFile(f"{path} is a binary file, not text; edit tools do not change it.")


def _foreign(path: str, what: str) -> FileFailed:
    sentence = f"{path} is not UTF-8 ({what}); edit tools would spoil it, so convert it first or leave it as it is."
    return FileFailed(errno.EILSEQ, path, sentence)
