"""The code and the docs use the words of the field: no metaphors, no unnamed actors, one word for a limit."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: Metaphors of the first version. Say service, layer, sandbox, MCP server, ask queue, supervisor, back channel ...
METAPHORS = (
    "apart attendant attendants cashier cashiers courier couriers crowd desk desks door doors ears enclosure "
    "enclosures errand errands farewell glance glances greet greets guest guests hearing "
    "hush inlet keeper keepers ledger ledgers "
    "lesson letter letters manuscript manuscripts mourn mourning mouth mouths neighbour neighbourhood neighbouring "
    "neighbours outlook passage passages plate purse purses reception seat seats seeds sheet sheets shelf shelves "
    "sow spare spares tellings utterance utterances veil veiled veils visit visitor visitors visits wall walled "
    "walling walls"
)

#: Actors without a name, and verbs that do not say what happened. Name the client, the operator, the model, the server.
UNNAMED = (
    "anew anybody everybody everybodys hear heard hears nobody nobodys somebody somebodys telling told whoever whomever"
)

BANNED = frozenset(f"{METAPHORS} {UNNAMED}".split())

#: Phrases of the first version whose words are ordinary by themselves.
PHRASES = re.compile(
    r"\bhouses?\b|the line every|on the line\b|says? hello|lets? us in|last words|kind signal|so many seconds",
    re.IGNORECASE,
)

#: One word for a limit: MAX_.
LIMITS = re.compile(r"\b_?(?:MOST_|LONGEST|MUCH\b|FEW_)\w*")

#: Where a banned word is the word of a specification, a public name or plain English. This list may only shrink.
ALLOWED: dict[str, frozenset[str]] = {
    "app/providers/bedrock.py": frozenset({"sheet"}),
    "app/api/rules.py": frozenset({"everybody"}),  # a field of POST /v1/rules
    "app/core/mcp_servers.py": frozenset({"walls"}),  # a setting of MCP servers
    "app/core/process_runner.py": frozenset({"wall"}),  # "Wall time:" in the output that models know
    "app/text/terminal_output.py": frozenset({"wall"}),
    "app/tools/exec/_shared.py": frozenset({"wall"}),
    "docs/configuration.md": frozenset({"walls"}),  # a setting of MCP servers
    "docs/mcp.md": frozenset({"walls"}),
    "docs/permissions.md": frozenset({"everybody"}),  # a field of POST /v1/rules
    "docs/sandbox.md": frozenset({"walls"}),
}

#: Fixed expressions of the field.
EXPRESSIONS = re.compile(r"wall[- ]clock|random seeds?|letters and digits|capital letters|other letters", re.IGNORECASE)


def sources() -> Iterator[Path]:
    yield from sorted(ROOT.glob("app/**/*.py"))
    yield from sorted(ROOT.glob("docs/**/*.md"))
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))


def words_of(line: str) -> set[str]:
    """Whole words, with identifiers split at underscores and capitals."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", EXPRESSIONS.sub(" ", line))}


def old_words(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    banned = BANNED - ALLOWED.get(name, frozenset())
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = sorted(words_of(line) & banned)
        found += [match.group() for pattern in (PHRASES, LIMITS) for match in pattern.finditer(line)]
        if found:
            yield f"{name}:{number}: {', '.join(found)}"


def test_no_metaphor_and_no_unnamed_actor() -> None:
    assert [violation for path in sources() for violation in old_words(path)] == []


def test_every_exception_is_still_needed() -> None:
    unneeded = {
        name: sorted(words - set().union(*(words_of(line) for line in (ROOT / name).read_text().splitlines())))
        for name, words in ALLOWED.items()
    }
    assert {name: words for name, words in unneeded.items() if words} == {}
