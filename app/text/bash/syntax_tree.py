"""Syntax trees of shell scripts: grown within bounds, and walked node by node after each was checked."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import local

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from app.text.bash.tree_checks import EXPRESSIONS, TEXTS, check, require_blank
from app.text.bash.unclear import Doubtful

LONGEST = 256 * 1024
DEEPEST = 2_000
MOST_NODES = 60_000
MOST_NESTED = 32
MOST_PIPED = 500
PIECE = 64

NESTING = frozenset({"command_substitution", "process_substitution", "expansion", "arithmetic_expansion"})
JOINING = frozenset({"list", "pipeline", "negated_command"})
REPEATING = frozenset({"do_group", "while_statement", "function_definition"})

_PIPED = re.compile(rb"\|&?[ \t]*\n(?![ \t]*\|)")
_GOES_ON = re.compile(rb"(?<=[^\\][ \t])\\\n|(?<=[^\\][;&|(])\\\n(?![;&|()<>])|(?<!\\)\\\n(?=[ \t])")
_BRACKETS = re.compile(rb"\$\{|\(|\{|\)|\}")
_BRACED = re.compile(rb"(\{[0-9]*(?:\.\.[0-9]*)?)([\xc4-\xf4][\x80-\xbf]+)")
_STAND_INS = {2: "é".encode(), 3: "éx".encode(), 4: "éé".encode()}
_own = local()
_OPENING = frozenset({b"${", b"(", b"{"})


class Unreadable(Doubtful):
    """The tree has errors. A longer or a shorter text may have none."""

    def __init__(self) -> None:
        super().__init__("the script is not bash that can be read")


@dataclass(frozen=True, slots=True)
class TreePosition:
    """A node and where it stands: how deep, in how many substitutions, whether it may run more than once.

    `sure_until` is the byte up to which all that runs does so only if this node succeeded; `is_tested` is all that
    stands between `[` and `]`, `is_joined` what is one of several with an operator between them.
    """

    node: Node
    depth: int = 0
    nested: int = 0
    is_repeated: bool = False
    sure_until: int = 0
    is_tested: bool = False
    is_joined: bool = False


def encode(script: str) -> bytes:
    """The script as the shell gets it. Raises `Doubtful` for what no shell gets that way."""
    if len(script) > LONGEST:
        raise Doubtful("the script is too long to be read")
    try:
        source = script.encode()
    except UnicodeEncodeError:
        raise Doubtful("the script is not text") from None
    if len(source) > LONGEST:
        raise Doubtful("the script is too long to be read")
    if b"\0" in source:
        raise Doubtful("the script holds a NUL, which the shell would leave out")
    return source


def grow(source: bytes) -> tuple[bytes, Tree]:
    """The tree of a script, and the script as it stands in it. Raises `Doubtful` when it is not one of bash."""
    _require_tame(source)
    tree = _grown(source)
    joined = _joined(source, tree)
    return (source, tree) if joined == source else (joined, _grown(joined))


def _grown(source: bytes) -> Tree:
    reads = _Reads(_BRACED.sub(_stand_in, source))
    tree = _parser().parse(reads)
    if reads.left < 0 or tree.root_node.has_error:
        raise Unreadable
    if tree.root_node.descendant_count > MOST_NODES:
        raise Doubtful("the script has too many parts to be read")
    return tree


def _stand_in(braced: re.Match[bytes]) -> bytes:
    """The grammar's scanner looks characters behind a brace up in a table of 256, and may crash on larger ones."""
    return braced[1] + _STAND_INS[len(braced[2])]


def _joined(source: bytes, tree: Tree) -> bytes:
    """Lines that go on, made one: after such a line the parser takes descriptors and variables for words."""
    joined = bytearray(source)
    for found in _GOES_ON.finditer(source):
        node = tree.root_node.descendant_for_byte_range(found.start(), found.start() + 1)
        if node is not None and node.child_count and node.type not in TEXTS:
            joined[found.start() : found.end()] = b"  "
    return bytes(joined)


def _parser() -> Parser:
    """One for each thread: while it asks for more to read, another thread may run."""
    if not hasattr(_own, "parser"):
        _own.parser = Parser(Language(tree_sitter_bash.language()))
    parser: Parser = _own.parser
    return parser


@dataclass(slots=True)
class _Reads:
    """Hands the script to the parser piece by piece, each a few times at most.

    A script that is broken over and over makes the parser read all of it again and again. It cannot be stopped from
    outside, but it comes to its end when there is nothing more to read.
    """

    source: bytes
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = 200 + len(self.source) // PIECE * 16

    def __call__(self, at: int, _: object) -> bytes:
        self.left -= 1
        return self.source[at : at + PIECE] if self.left >= 0 else b""


def _require_tame(source: bytes) -> None:
    """What would take the parser ages, were it broken at its end, and which nobody writes."""
    if any(line.count(b"|") > MOST_PIPED for line in _PIPED.sub(b"|", source).split(b"\n")):
        raise Doubtful("a pipeline is too long to be read")
    depth = 0
    for found in _BRACKETS.finditer(source):
        depth = depth + 1 if found[0] in _OPENING else max(0, depth - 1)
        if depth > DEEPEST:
            raise Doubtful("the script is nested too deeply to be read")


def walk(source: bytes, tree: Tree) -> Iterator[TreePosition]:
    """Each node in the order of the script, after it was checked. Raises `Doubtful`."""
    root = tree.root_node
    require_blank(source[: root.start_byte])
    require_blank(source[root.end_byte :])
    stack = [TreePosition(root)]
    while stack:
        place = stack.pop()
        if place.depth > DEEPEST or place.nested > MOST_NESTED:
            raise Doubtful("the script is nested too deeply to be read")
        children = place.node.children
        check(source, place.node, children, is_tested=place.is_tested)
        yield place
        stack.extend(_inside(place, child) for child in reversed(children))


def _inside(place: TreePosition, child: Node) -> TreePosition:
    node = place.node
    return TreePosition(
        child,
        place.depth + 1,
        place.nested + (node.type in NESTING),
        place.is_repeated or node.type in REPEATING,
        _sure_until(place, child),
        _is_tested(place),
        node.type in JOINING or (place.is_joined and node.type == "redirected_statement"),
    )


def _is_tested(place: TreePosition) -> bool:
    if place.node.type == "test_command":
        return place.node.children[0].type == "["
    return place.is_tested and place.node.type in EXPRESSIONS


def _sure_until(place: TreePosition, child: Node) -> int:
    """In `cd a && b && c` both others run only where `cd` succeeded; a redirect of the last stands beside the list."""
    node = place.node
    if node.type == "redirected_statement":
        return max(place.sure_until, node.end_byte) if child.type == "list" else place.sure_until
    if node.type != "list" or not any(part.type == "&&" for part in node.children):
        return 0
    if child.start_byte > node.start_byte:
        return place.sure_until
    return max(place.sure_until, node.end_byte)
