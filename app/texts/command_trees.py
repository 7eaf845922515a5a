"""Syntax trees of shell scripts, and whether they can be believed.

tree-sitter reads a language that is very like bash, yet not bash: it takes `\\ ` for blank space, `a\\` at the end of a
line for the end of a word, and has texts in its tree which the shell would look into once more. So a tree counts only
if each byte of the script is accounted for: it belongs to a word, an operator, a comment or a here-document that the
shell would see at the same place, or it is plain blank space. Anything else is `Unclear`, and unclear means asking.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from app.texts.names import names

LONGEST = 256 * 1024
DEEPEST = 2_000
MOST_NODES = 200_000
MOST_NESTED = 32
MOST_PIPED = 500
PIECE = 64

KNOWN = names("""
    program comment command command_name redirected_statement file_redirect file_descriptor heredoc_redirect
    heredoc_start heredoc_body heredoc_content heredoc_end herestring_redirect list pipeline negated_command subshell
    compound_statement if_statement elif_clause else_clause while_statement for_statement c_style_for_statement do_group
    case_statement case_item function_definition test_command declaration_command unset_command variable_assignment
    variable_assignments variable_name special_variable_name subscript array word number string string_content
    raw_string ansi_c_string translated_string concatenation expansion simple_expansion command_substitution
    process_substitution arithmetic_expansion brace_expression binary_expression unary_expression ternary_expression
    postfix_expression parenthesized_expression test_operator extglob_pattern regex
    """)
WORDS = names("""
    word number string raw_string ansi_c_string translated_string concatenation expansion simple_expansion
    command_substitution process_substitution arithmetic_expansion brace_expression command_name extglob_pattern regex
    variable_assignment variable_name
    """)
NESTING = frozenset({"command_substitution", "process_substitution", "expansion", "arithmetic_expansion"})
SOLID = frozenset({"concatenation", "simple_expansion", "command_name", "variable_assignment", "brace_expression"})
"""What has no blank space between its parts."""
TEXTS = frozenset({"string", "heredoc_body"})
"""What has text of its own between its parts."""
LISTED = names("""
    command file_redirect heredoc_redirect herestring_redirect declaration_command unset_command for_statement array
    variable_assignments
    """)
"""What has words beside each other, which only blank space keeps apart."""

_BLANK = re.compile(rb"(?:[ \t\n]|\\\n)*")
_BARE = re.compile(rb"(?:[^\s'\"`$\\;&|()<>]|\\[^\n])+")
_OPAQUE = re.compile(rb"[`'\"]|\$[({A-Za-z_0-9'\"]|[<>]\(")
_SUBSTITUTED = re.compile(rb"(?:^|[^\\])(?:\\\\)*(?:`|\$\()")
_TAG = re.compile(rb"\\?([A-Za-z_0-9][\w.-]*)|'([^'\n\\]+)'|\"([^\"\n\\$`]+)\"")
_CONTINUED = re.compile(rb"(?<!\\)(?:\\\\)*\\\n")
_PIPED = re.compile(rb"\|&?[ \t]*\n(?![ \t]*\|)")
_BRACKETS = re.compile(rb"\$\{|\(|\{|\)|\}")
_OPENING = frozenset({b"${", b"(", b"{"})
_BEFORE_COMMENT = b" \t\n;&|()<>"


@dataclass(frozen=True, slots=True)
class Unclear:
    """A script, or a part of one, of which nobody can say what it would run. `text` is that part."""

    reason: str
    text: str


class Doubtful(Exception):
    """The tree, or what stands in it, is not to be believed. It becomes an `Unclear`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Place:
    """A node and where it stands: how deep, in how many substitutions, whether it may run more than once.

    `sure_until` is the byte up to which all that runs does so only if this node succeeded.
    """

    node: Node
    depth: int = 0
    nested: int = 0
    is_repeated: bool = False
    sure_until: int = 0


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


def grow(source: bytes) -> Tree:
    """The tree of a script. Raises `Doubtful` when it is not one of bash."""
    _require_tame(source)
    reads = _Reads(source)
    tree = _parser().parse(reads)
    if reads.left < 0 or tree.root_node.has_error:
        raise Doubtful("the script is not bash that can be read")
    if tree.root_node.descendant_count > MOST_NODES:
        raise Doubtful("the script has too many parts to be read")
    return tree


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


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


def walk(source: bytes, tree: Tree) -> Iterator[Place]:
    """Each node in the order of the script, after it was checked. Raises `Doubtful`."""
    root = tree.root_node
    _require_blank(source[: root.start_byte])
    _require_blank(source[root.end_byte :])
    stack = [Place(root)]
    while stack:
        place = stack.pop()
        if place.depth > DEEPEST or place.nested > MOST_NESTED:
            raise Doubtful("the script is nested too deeply to be read")
        node = place.node
        if node.is_named and node.type not in KNOWN:
            raise Doubtful(f"nobody knows what `{node.type}` would run")
        children = node.children
        if children:
            _check_gaps(source, node, children)
        else:
            _check_leaf(source, node)
        if check := _CHECKS.get(node.type):
            check(source, node)
        yield place
        if children:
            stack.extend(_inside(place, child) for child in reversed(children))


def _inside(place: Place, child: Node) -> Place:
    node = place.node
    is_repeated = place.is_repeated or node.type in {"do_group", "while_statement", "function_definition"}
    return Place(
        child,
        place.depth + 1,
        place.nested + (node.type in NESTING),
        is_repeated,
        _sure_until(place, child),
    )


def _sure_until(place: Place, child: Node) -> int:
    """In `cd a && b && c` both others run only where `cd` succeeded; a redirect of the last stands beside the list."""
    node = place.node
    if node.type == "redirected_statement":
        return max(place.sure_until, node.end_byte) if child.type == "list" else place.sure_until
    if node.type != "list" or node.children[1].type != "&&":
        return 0
    if child.start_byte > node.start_byte:
        return place.sure_until
    return max(place.sure_until, node.end_byte)


def _check_gaps(source: bytes, node: Node, children: list[Node]) -> None:
    """What stands between the parts of a node is blank space, where there may be any."""
    if node.type in TEXTS:
        return
    at, before = node.start_byte, None
    for child in children:
        gap = source[at : child.start_byte]
        if gap:
            if node.type in SOLID:
                raise Doubtful("a word does not end where it seems to")
            _require_blank(gap)
        if before is not None and node.type in LISTED and _touch(before, child, gap):
            raise Doubtful("a word does not end where it seems to")
        at, before = child.end_byte, child
    _require_blank(source[at : node.end_byte])


def _touch(before: Node, after: Node, gap: bytes) -> bool:
    """Whether the shell would see one word where the tree has two."""
    if not _is_word(before) or not _is_word(after):
        return False
    return not gap.replace(b"\\\n", b"")


def _is_word(node: Node) -> bool:
    return node.type in WORDS or node.type in {"$", "==", "=~"}


def _require_blank(gap: bytes) -> None:
    if gap and _BLANK.fullmatch(gap) is None:
        raise Doubtful("there is something between the words that the shell would not take for blank space")


def _check_leaf(source: bytes, node: Node) -> None:
    if not node.is_named:
        if source[node.start_byte : node.end_byte].strip(b" \t\n") != node.type.strip().encode():
            raise Doubtful(f"`{node.type}` is not where it seems to be")
        return
    if node.start_byte == node.end_byte and node.type not in {
        "heredoc_body",
        "variable_name",
        "string_content",
        "word",
    }:
        raise Doubtful(f"an empty `{node.type}` is nowhere in bash")


def _check_bare(source: bytes, node: Node) -> None:
    """A word without quotes. One with parts of its own is a number in some base that is not known before."""
    text = source[node.start_byte : node.end_byte]
    if node.children or (text and _BARE.fullmatch(text) is None):
        raise Doubtful("a word does not end where it seems to")
    if text.startswith(b"#") and _begins_word(source, node.start_byte):
        raise Doubtful("what seems to be a word is a comment")


def _check_opaque(source: bytes, node: Node) -> None:
    """Patterns come as one text, and the shell would look for substitutions and quotes in them."""
    if _OPAQUE.search(source[node.start_byte : node.end_byte]):
        raise Doubtful("a pattern holds quotes or substitutions, which cannot be looked into")


def _check_comment(source: bytes, node: Node) -> None:
    if not _begins_word(source, node.start_byte):
        raise Doubtful("what seems to be a comment is part of a word")


def _begins_word(source: bytes, at: int) -> bool:
    return at == 0 or source[at - 1] in _BEFORE_COMMENT


def _check_string(source: bytes, node: Node) -> None:
    for gap in texts_between(source, node):
        if _SUBSTITUTED.search(gap):
            raise Doubtful("a text holds substitutions that cannot be looked into")


def _check_backticks(source: bytes, node: Node) -> None:
    text = source[node.start_byte : node.end_byte]
    if text.lstrip().startswith(b"`") and b"\\" in text:
        raise Doubtful("backslashes between backticks mean something else than elsewhere")


def _check_expansion(source: bytes, node: Node) -> None:
    if b"@P" in source[node.start_byte : node.end_byte]:
        raise Doubtful("a value is expanded like a prompt, which runs what is in it")


def _check_heredoc(source: bytes, node: Node) -> None:
    """The body must end where the shell would end it: at the first line that is the tag alone."""
    parts = {child.type: child for child in node.children}
    start, body, end = parts["heredoc_start"], parts["heredoc_body"], parts["heredoc_end"]
    tag = heredoc_tag(source, start)
    text = source[body.start_byte : end.end_byte]
    if source[body.start_byte - 1 : body.start_byte] != b"\n" or source[end.end_byte : end.end_byte + 1] not in {
        b"",
        b"\n",
    }:
        raise Doubtful("a here-document does not end where it seems to")
    lines = text.split(b"\n")
    if "<<-" in parts:
        lines = [line.lstrip(b"\t") for line in lines]
    if lines.index(tag) != len(lines) - 1 if tag in lines else True:
        raise Doubtful("a here-document does not end where it seems to")
    if is_expanded(source, start):
        if _CONTINUED.search(text):
            raise Doubtful("a here-document has lines that go on, which may hide its end")
        for gap in texts_between(source, body):
            if _SUBSTITUTED.search(gap):
                raise Doubtful("a here-document holds substitutions that cannot be looked into")


def heredoc_tag(source: bytes, start: Node) -> bytes:
    found = _TAG.fullmatch(source[start.start_byte : start.end_byte])
    if found is None:
        raise Doubtful("the tag of a here-document is none that is commonly used")
    return found[1] or found[2] or found[3]


def is_expanded(source: bytes, start: Node) -> bool:
    """Whether the shell looks for substitutions in a here-document: its tag has no quotes."""
    return source[start.start_byte : start.start_byte + 1] not in {b"'", b'"', b"\\"}


def texts_between(source: bytes, node: Node) -> Iterator[bytes]:
    """The literal texts of a node that also has substitutions, in order; there may be empty ones."""
    at = node.start_byte
    for child in node.children:
        if child.type in {"string_content", "heredoc_content"}:
            continue
        yield source[at : child.start_byte]
        at = child.end_byte
    yield source[at : node.end_byte]


_CHECKS: dict[str, Callable[[bytes, Node], None]] = {
    "word": _check_bare,
    "number": _check_bare,
    "variable_name": _check_bare,
    "extglob_pattern": _check_opaque,
    "regex": _check_opaque,
    "comment": _check_comment,
    "string": _check_string,
    "command_substitution": _check_backticks,
    "expansion": _check_expansion,
    "heredoc_redirect": _check_heredoc,
}
