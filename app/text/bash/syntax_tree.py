"""Syntax trees of shell scripts."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import local

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from app.text.bash.script import Doubtful, names

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
    variable_assignment variable_name test_operator
    """)
EXPRESSIONS = names("binary_expression unary_expression ternary_expression postfix_expression parenthesized_expression")
SOLID = names("concatenation simple_expansion command_name variable_assignment brace_expression")
"""What has no blank space between its parts."""
TEXTS = frozenset({"string", "heredoc_body"})
"""What has text of its own between its parts."""
ONE_LINE = names("""
    command file_redirect herestring_redirect declaration_command unset_command variable_assignments negated_command
    redirected_statement test_command
    """)
"""What ends with its line."""
BEFORE_COMMANDS = names("variable_assignment comment")
"""What the tree takes for the beginning of a command even if that is on another line."""
LISTED = names("heredoc_redirect for_statement array") | ONE_LINE | EXPRESSIONS
"""What has words beside each other, which only blank space keeps apart."""
ENDING_IN_WORDS = names("file_redirect herestring_redirect")
KEYWORDS = names("""
    if then elif else fi do done case esac while until for select function in { } ! [ ] [[ ]] declare typeset export
    readonly local unset unsetenv
    """)
STATEMENTS = names("""
    compound_statement if_statement elif_clause else_clause while_statement for_statement c_style_for_statement do_group
    case_statement function_definition test_command declaration_command unset_command negated_command
    """)
PATTERNS = frozenset({"extglob_pattern", "regex"})
MAY_BE_EMPTY = names("heredoc_body heredoc_content variable_name string_content word program")

_BLANK = re.compile(rb"[ \t\n]*")
_BLANK_IN_LINE = re.compile(rb"[ \t]*")
_DASH = re.compile(rb"[ \t]+-[ \t]+")
_BARE = re.compile(rb"(?:[^\s'\"`$\\;&|()<>]|\\[^\n])+")
_META = re.compile(rb"[;&|()<>]")
_OPAQUE = re.compile(rb"[`'\"]|\$[({A-Za-z_0-9'\"]|[<>]\(")
_SUBSTITUTED = re.compile(rb"(?:^|[^\\])(?:\\\\)*(?:`|\$\()")
_TAG = re.compile(rb"\\?([A-Za-z_0-9][\w.-]*)|'([^'\n\\\x80-\xff]+)'|\"([^\"\n\\$`\x80-\xff]+)\"")
_ENDS_PATTERN = {
    "expansion": re.compile(rb"[}\\]"),
    "binary_expression": re.compile(rb"\s"),
    "case_item": re.compile(rb"[\s;&<>\\]"),
}
"""In what there are patterns, and what one cannot hold there."""
_CONTINUED = re.compile(rb"(?<!\\)(?:\\\\)*\\\n")
_BETWEEN_WORDS = b" \t\n;&|()<>`"

ELSEWHERE = "a word does not end where it seems to"

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


def check(source: bytes, node: Node, children: list[Node], *, is_tested: bool) -> None:
    """Whether a node is what the shell would see there. Raises `Doubtful`."""
    if node.is_named and node.type not in KNOWN:
        raise Doubtful(f"nobody knows what `{node.type}` would run")
    if is_tested:
        _check_tested(source, node)
    if children:
        _check_gaps(source, node, children, is_tested)
    else:
        _check_leaf(source, node)
    if special := _CHECKS.get(node.type):
        special(source, node)
    if node.type in STATEMENTS:
        _check_keywords(source, children)
    for child in children:
        if child.type in PATTERNS:
            _check_pattern(source, node, child)


def require_blank(gap: bytes, kind: re.Pattern[bytes] = _BLANK) -> None:
    if gap and kind.fullmatch(gap) is None:
        raise Doubtful("there is something between the words that the shell would not take for blank space")


def _check_gaps(source: bytes, node: Node, children: list[Node], is_tested: bool) -> None:
    """What stands between the parts of a node is blank space, where there may be any."""
    if node.type in TEXTS:
        return
    at, before = node.start_byte, None
    for child in children:
        is_line = is_tested or (node.type in ONE_LINE and (before is None or before.type not in BEFORE_COMMANDS))
        gap = source[at : child.start_byte]
        if gap and node.type in SOLID:
            raise Doubtful(ELSEWHERE)
        if not (child.type == "heredoc_redirect" and lost_dash(gap)):
            require_blank(gap, _BLANK_IN_LINE if is_line else _BLANK)
        if before is not None and node.type in LISTED and _touch(before, child, gap):
            raise Doubtful(ELSEWHERE)
        at, before = child.end_byte, child
    require_blank(source[at : node.end_byte])


def lost_dash(gap: bytes) -> bool:
    """In `python - <<EOF` the tree has no dash at all; it is a word like others."""
    return _DASH.fullmatch(gap) is not None


def _touch(before: Node, after: Node, gap: bytes) -> bool:
    """Whether the shell would see one word where the tree has two."""
    if not (_is_word(before) or before.type in ENDING_IN_WORDS) or not _is_word(after):
        return False
    return not gap


def _is_word(node: Node) -> bool:
    return node.type in WORDS or node.type in {"$", "==", "=~"}


def _check_leaf(source: bytes, node: Node) -> None:
    if not node.is_named:
        if source[node.start_byte : node.end_byte].strip(b" \t\n") != node.type.strip().encode():
            raise Doubtful(f"`{node.type}` is not where it seems to be")
        if node.type in {"<", ">"} and source[node.end_byte : node.end_byte + 1] == b"(":
            raise Doubtful("what seems to be a comparison is a substitution")
    elif node.start_byte == node.end_byte and node.type not in MAY_BE_EMPTY:
        raise Doubtful(f"an empty `{node.type}` is nowhere in bash")


def _check_keywords(source: bytes, children: list[Node]) -> None:
    """A keyword is one only if it is a word of its own: `{a,b}` is none."""
    for child in children:
        if child.type not in KEYWORDS:
            continue
        start = child.end_byte - len(child.type)
        if not _begins_word(source, start) or source[child.end_byte : child.end_byte + 1] not in _ENDS_WORD:
            raise Doubtful(f"`{child.type}` is not where it seems to be")


def _check_tested(source: bytes, node: Node) -> None:
    """Between `[` and `]` the shell sees words, and whatever is none ends the command."""
    text = source[node.start_byte : node.end_byte]
    if node.is_named and node.type not in WORDS | EXPRESSIONS | {"comment"}:
        raise Doubtful("a test holds something that is no word")
    if not node.is_named and _META.search(text):
        raise Doubtful("a test holds something that is no word")


def _check_bare(source: bytes, node: Node) -> None:
    """A word without quotes. One with parts of its own is a number in some base that is not known before."""
    text = source[node.start_byte : node.end_byte]
    if node.children or (text and _BARE.fullmatch(text) is None):
        raise Doubtful(ELSEWHERE)
    if text.startswith(b"#") and _begins_word(source, node.start_byte):
        raise Doubtful("what seems to be a word is a comment")
    if (
        text.isdigit()
        and _begins_word(source, node.start_byte)
        and source[node.end_byte : node.end_byte + 1] in _ARROWS
    ):
        raise Doubtful("what seems to be a word is a descriptor")


def _check_pattern(source: bytes, node: Node, child: Node) -> None:
    """Patterns come as one text, and the shell would look for their end, for substitutions and quotes in them."""
    text = source[child.start_byte : child.end_byte]
    if node.type not in _ENDS_PATTERN or _OPAQUE.search(text) or _ENDS_PATTERN[node.type].search(text):
        raise Doubtful("a pattern holds quotes or substitutions, which cannot be looked into")
    if node.type == "case_item" and text.count(b"(") != text.count(b")"):
        raise Doubtful("a pattern does not end where it seems to")


def _check_comment(source: bytes, node: Node) -> None:
    if not _begins_word(source, node.start_byte):
        raise Doubtful("what seems to be a comment is part of a word")


def _check_descriptor(source: bytes, node: Node) -> None:
    is_number = source[node.start_byte : node.end_byte].isdigit()
    if not is_number or not _begins_word(source, node.start_byte):
        raise Doubtful(ELSEWHERE)


def _begins_word(source: bytes, at: int) -> bool:
    return at == 0 or source[at - 1] in _BETWEEN_WORDS


def _check_concatenation(source: bytes, node: Node) -> None:
    for before, after in zip(node.children, node.children[1:], strict=False):
        if before.type == "$" and after.type in {"string", "raw_string"}:
            raise Doubtful("a text that is translated may become any other")


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
    tag, begin = heredoc_tag(source, start), heredoc_begin(source, node)
    text = source[begin : end.end_byte]
    lines = text.split(b"\n")
    if "<<-" in parts:
        lines = [line.lstrip(b"\t") for line in lines]
    if tag not in lines or lines.index(tag) != len(lines) - 1 or source[end.end_byte : end.end_byte + 1].strip(b"\n"):
        raise Doubtful("a here-document does not end where it seems to")
    if is_expanded(source, start):
        if _CONTINUED.search(text):
            raise Doubtful("a here-document has lines that go on, which may hide its end")
        for gap in texts_between(source, body):
            if _SUBSTITUTED.search(gap):
                raise Doubtful("a here-document holds substitutions that cannot be looked into")


def heredoc_begin(source: bytes, node: Node) -> int:
    """Where the first line of a here-document begins; the tree leaves out what is blank there."""
    at = next(index for index, child in enumerate(node.children) if child.type == "heredoc_body")
    before, body = node.children[at - 1], node.children[at]
    gap = source[before.end_byte : body.start_byte]
    rest, newline, blank = gap.partition(b"\n")
    if not newline or rest.strip(b" \t") or blank.strip(b" \t\n"):
        raise Doubtful("a here-document does not begin where it seems to")
    return before.end_byte + len(rest) + 1


def heredoc_tag(source: bytes, start: Node) -> bytes:
    found = _TAG.fullmatch(source[start.start_byte : start.end_byte])
    if found is None or source[start.end_byte : start.end_byte + 1] not in _ENDS_WORD:
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


_ARROWS = frozenset({b"<", b">"})
_ENDS_WORD = frozenset({b"", *(bytes([byte]) for byte in _BETWEEN_WORDS)})
_CHECKS: dict[str, Callable[[bytes, Node], None]] = {
    "word": _check_bare,
    "number": _check_bare,
    "variable_name": _check_bare,
    "test_operator": _check_bare,
    "comment": _check_comment,
    "file_descriptor": _check_descriptor,
    "concatenation": _check_concatenation,
    "string": _check_string,
    "command_substitution": _check_backticks,
    "expansion": _check_expansion,
    "heredoc_redirect": _check_heredoc,
}


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
