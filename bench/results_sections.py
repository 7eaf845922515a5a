"""RESULTS.md in sections: each benchmark writes its own between two marks and leaves the others as they are.
And how all of them write figures."""

from pathlib import Path
from statistics import median

RESULTS = Path(__file__).with_name("RESULTS.md")


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def written(path: Path, name: str) -> str | None:
    """What stands in a section; None when there is no such section."""
    begin, end = marks(name)
    if not path.exists():
        return None
    _, has_begin, rest = path.read_text().partition(begin)
    text, has_end, _ = rest.partition(end)
    return text.strip("\n") if has_begin and has_end else None


def write(path: Path, name: str, text: str) -> None:
    """Put a section in place of the old one, or at the end."""
    begin, end = marks(name)
    block = f"{begin}\n{text.strip()}\n{end}"
    whole = path.read_text() if path.exists() else ""
    before, has_begin, rest = whole.partition(begin)
    _, has_end, after = rest.partition(end)
    path.write_text(f"{before}{block}{after}" if has_begin and has_end else f"{whole.rstrip()}\n\n{block}\n".lstrip())


def spread(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} [{min(values):.{digits}f} to {max(values):.{digits}f}]"


def loads(averages: tuple[float, float, float]) -> str:
    return " ".join(f"{value:.2f}" for value in averages)
