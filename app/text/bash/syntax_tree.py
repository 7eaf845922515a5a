"""Syntax trees of shell scripts: parsed within bounds, and checked node by node against what bash would see.

tree-sitter parses a language that is similar to bash, but not bash: it takes `\\ ` for blank space, a backslash at the
end of a line for the end of a word, `[ a | b ]` for a test that runs no `b`, and leaves texts opaque which the shell
would expand. So a tree is accepted only if each byte of the script is accounted for: it belongs to a word, an operator,
a comment or a here-document that the shell would see at the same position, or it is blank space.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import local

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from app.text.bash.script import NotAnalyzable, names

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
"""Nodes without blank space between their parts."""
TEXTS = frozenset({"string", "heredoc_body"})
"""Nodes with text of their own between their parts."""
ONE_LINE = names("""
    command file_redirect herestring_redirect declaration_command unset_command variable_assignments negated_command
    redirected_statement test_command
    """)
"""Nodes that end with their line."""
BEFORE_COMMANDS = names("variable_assignment comment")
"""Nodes that the tree takes for the beginning of a command even if that is on another line."""
LISTED = names("heredoc_redirect for_statement array") | ONE_LINE | EXPRESSIONS
"""Nodes whose words are separated only by blank space."""
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
"""Nodes with patterns, and what a pattern cannot contain there."""
_CONTINUED = re.compile(rb"(?<!\\)(?:\\\\)*\\\n")
_BETWEEN_WORDS = b" \t\n;&|()<>`"

WORD_ENDS_ELSEWHERE = "a word does not end where it seems to"

MAX_BYTES = 256 * 1024
MAX_DEPTH = 2_000
MAX_NODES = 60_000
MAX_NESTED = 32
MAX_PIPES = 500
CHUNK_BYTES = 64

NESTING = frozenset({"command_substitution", "process_substitution", "expansion", "arithmetic_expansion"})
JOINING = frozenset({"list", "pipeline", "negated_command"})
REPEATING = frozenset({"do_group", "while_statement", "function_definition"})

_PIPED = re.compile(rb"\|&?[ \t]*\n(?![ \t]*\|)")
_CONTINUATION = re.compile(rb"(?<=[^\\][ \t])\\\n|(?<=[^\\][;&|(])\\\n(?![;&|()<>])|(?<!\\)\\\n(?=[ \t])")
_BRACKETS = re.compile(rb"\$\{|\(|\{|\)|\}")
_BRACED = re.compile(rb"(\{[0-9]*(?:\.\.[0-9]*)?)([\xc4-\xf4][\x80-\xbf]+)")
_REPLACEMENTS = {2: "é".encode(), 3: "éx".encode(), 4: "éé".encode()}
_local = local()
_OPENING = frozenset({b"${", b"(", b"{"})


def check(source: bytes, node: Node, children: list[Node], *, is_tested: bool) -> None:
    """Check that a node is what the shell would see there. Raises `NotAnalyzable`."""
    if node.is_named and node.type not in KNOWN:
        raise NotAnalyzable(f"`{node.type}` is not supported")
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
        raise NotAnalyzable("there is something between words that is not blank space to the shell")


def _check_gaps(source: bytes, node: Node, children: list[Node], is_tested: bool) -> None:
    """Only blank space may be between the parts of a node, where any is allowed."""
    if node.type in TEXTS:
        return
    at, before = node.start_byte, None
    for child in children:
        is_line = is_tested or (node.type in ONE_LINE and (before is None or before.type not in BEFORE_COMMANDS))
        gap = source[at : child.start_byte]
        if gap and node.type in SOLID:
            raise NotAnalyzable(WORD_ENDS_ELSEWHERE)
        if not (child.type == "heredoc_redirect" and is_lost_dash(gap)):
            require_blank(gap, _BLANK_IN_LINE if is_line else _BLANK)
        if before is not None and node.type in LISTED and _touch(before, child, gap):
            raise NotAnalyzable(WORD_ENDS_ELSEWHERE)
        at, before = child.end_byte, child
    require_blank(source[at : node.end_byte])


def is_lost_dash(gap: bytes) -> bool:
    """In `python - <<EOF` the tree leaves out the dash, which is a word."""
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
            raise NotAnalyzable(f"`{node.type}` is not where it seems to be")
        if node.type in {"<", ">"} and source[node.end_byte : node.end_byte + 1] == b"(":
            raise NotAnalyzable("what seems to be a comparison is a substitution")
    elif node.start_byte == node.end_byte and node.type not in MAY_BE_EMPTY:
        raise NotAnalyzable(f"an empty `{node.type}` is nowhere in bash")


def _check_keywords(source: bytes, children: list[Node]) -> None:
    """A keyword must be a word of its own: the braces of `{a,b}` are none."""
    for child in children:
        if child.type not in KEYWORDS:
            continue
        start = child.end_byte - len(child.type)
        if not _begins_word(source, start) or source[child.end_byte : child.end_byte + 1] not in _ENDS_WORD:
            raise NotAnalyzable(f"`{child.type}` is not where it seems to be")


def _check_tested(source: bytes, node: Node) -> None:
    """Between `[` and `]` the shell sees words, and anything else ends the command."""
    text = source[node.start_byte : node.end_byte]
    if node.is_named and node.type not in WORDS | EXPRESSIONS | {"comment"}:
        raise NotAnalyzable("a test has something that is not a word")
    if not node.is_named and _META.search(text):
        raise NotAnalyzable("a test has something that is not a word")


def _check_bare(source: bytes, node: Node) -> None:
    """A word without quotes. One with parts of its own is a number in an unknown base."""
    text = source[node.start_byte : node.end_byte]
    if node.children or (text and _BARE.fullmatch(text) is None):
        raise NotAnalyzable(WORD_ENDS_ELSEWHERE)
    if text.startswith(b"#") and _begins_word(source, node.start_byte):
        raise NotAnalyzable("what seems to be a word is a comment")
    if (
        text.isdigit()
        and _begins_word(source, node.start_byte)
        and source[node.end_byte : node.end_byte + 1] in _ARROWS
    ):
        raise NotAnalyzable("what seems to be a word is a descriptor")


def _check_pattern(source: bytes, node: Node, child: Node) -> None:
    """A pattern is one opaque text, in which the shell would find quotes, substitutions and its end."""
    text = source[child.start_byte : child.end_byte]
    if node.type not in _ENDS_PATTERN or _OPAQUE.search(text) or _ENDS_PATTERN[node.type].search(text):
        raise NotAnalyzable("a pattern has quotes or substitutions, which cannot be analyzed")
    if node.type == "case_item" and text.count(b"(") != text.count(b")"):
        raise NotAnalyzable("a pattern does not end where it seems to")


def _check_comment(source: bytes, node: Node) -> None:
    if not _begins_word(source, node.start_byte):
        raise NotAnalyzable("what seems to be a comment is part of a word")


def _check_descriptor(source: bytes, node: Node) -> None:
    is_number = source[node.start_byte : node.end_byte].isdigit()
    if not is_number or not _begins_word(source, node.start_byte):
        raise NotAnalyzable(WORD_ENDS_ELSEWHERE)


def _begins_word(source: bytes, at: int) -> bool:
    return at == 0 or source[at - 1] in _BETWEEN_WORDS


def _check_concatenation(source: bytes, node: Node) -> None:
    for before, after in zip(node.children, node.children[1:], strict=False):
        if before.type == "$" and after.type in {"string", "raw_string"}:
            raise NotAnalyzable("a translated string may become any other")


def _check_string(source: bytes, node: Node) -> None:
    for gap in texts_between(source, node):
        if _SUBSTITUTED.search(gap):
            raise NotAnalyzable("a string has substitutions that cannot be analyzed")


def _check_backticks(source: bytes, node: Node) -> None:
    text = source[node.start_byte : node.end_byte]
    if text.lstrip().startswith(b"`") and b"\\" in text:
        raise NotAnalyzable("backslashes have another meaning between backticks")


def _check_expansion(source: bytes, node: Node) -> None:
    if b"@P" in source[node.start_byte : node.end_byte]:
        raise NotAnalyzable("a value is expanded like a prompt, which runs its commands")


def _check_heredoc(source: bytes, node: Node) -> None:
    """The body must end where the shell would end it: at the first line that is only the tag."""
    parts = {child.type: child for child in node.children}
    start, body, end = parts["heredoc_start"], parts["heredoc_body"], parts["heredoc_end"]
    tag, begin = heredoc_tag(source, start), heredoc_begin(source, node)
    text = source[begin : end.end_byte]
    lines = text.split(b"\n")
    if "<<-" in parts:
        lines = [line.lstrip(b"\t") for line in lines]
    if tag not in lines or lines.index(tag) != len(lines) - 1 or source[end.end_byte : end.end_byte + 1].strip(b"\n"):
        raise NotAnalyzable("a here-document does not end where it seems to")
    if is_expanded(source, start):
        if _CONTINUED.search(text):
            raise NotAnalyzable("a here-document has continued lines, which may hide its end")
        for gap in texts_between(source, body):
            if _SUBSTITUTED.search(gap):
                raise NotAnalyzable("a here-document has substitutions that cannot be analyzed")


def heredoc_begin(source: bytes, node: Node) -> int:
    """Where the first line of a here-document begins; the tree leaves out leading blanks."""
    at = next(index for index, child in enumerate(node.children) if child.type == "heredoc_body")
    before, body = node.children[at - 1], node.children[at]
    gap = source[before.end_byte : body.start_byte]
    rest, newline, blank = gap.partition(b"\n")
    if not newline or rest.strip(b" \t") or blank.strip(b" \t\n"):
        raise NotAnalyzable("a here-document does not begin where it seems to")
    return before.end_byte + len(rest) + 1


def heredoc_tag(source: bytes, start: Node) -> bytes:
    found = _TAG.fullmatch(source[start.start_byte : start.end_byte])
    if found is None or source[start.end_byte : start.end_byte + 1] not in _ENDS_WORD:
        raise NotAnalyzable("the tag of a here-document is unusual")
    return found[1] or found[2] or found[3]


def is_expanded(source: bytes, start: Node) -> bool:
    """Whether the shell expands a here-document: its tag has no quotes."""
    return source[start.start_byte : start.start_byte + 1] not in {b"'", b'"', b"\\"}


def texts_between(source: bytes, node: Node) -> Iterator[bytes]:
    """The literal texts between the substitutions of a node, in order; some may be empty."""
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


class Unparseable(NotAnalyzable):
    """The tree has errors. A longer or a shorter piece may have none."""

    def __init__(self) -> None:
        super().__init__("the script is not valid bash")


@dataclass(frozen=True, slots=True)
class TreePosition:
    """A node and its position in the tree."""

    node: Node
    depth: int = 0
    #: The number of substitutions around it.
    nested: int = 0
    #: It may run more than once.
    is_repeated: bool = False
    #: Up to this byte everything runs only if this node succeeded.
    guards_until: int = 0
    #: It is between `[` and `]`.
    is_tested: bool = False
    #: It is one of several with an operator between them.
    is_joined: bool = False


def encode(script: str) -> bytes:
    """The script as bytes. Raises `NotAnalyzable` if it is too long, not text, or has a NUL."""
    if len(script) > MAX_BYTES:
        raise NotAnalyzable("the script is too long to be analyzed")
    try:
        source = script.encode()
    except UnicodeEncodeError:
        raise NotAnalyzable("the script is not text") from None
    if len(source) > MAX_BYTES:
        raise NotAnalyzable("the script is too long to be analyzed")
    if b"\0" in source:
        raise NotAnalyzable("the script has a NUL, which the shell would drop")
    return source


def parse_tree(source: bytes) -> tuple[bytes, Tree]:
    """The tree of a script, and the script with continued lines joined. Raises `NotAnalyzable`."""
    _require_bounded(source)
    tree = _parse(source)
    joined = _join_lines(source, tree)
    return (source, tree) if joined == source else (joined, _parse(joined))


def _parse(source: bytes) -> Tree:
    reader = _BoundedReader(_BRACED.sub(_replace_wide, source))
    tree = _parser().parse(reader)
    if reader.left < 0 or tree.root_node.has_error:
        raise Unparseable
    if tree.root_node.descendant_count > MAX_NODES:
        raise NotAnalyzable("the script has too many parts to be analyzed")
    return tree


def _replace_wide(braced: re.Match[bytes]) -> bytes:
    """The grammar's scanner looks up characters behind a brace in a table of 256, and may crash on larger ones."""
    return braced[1] + _REPLACEMENTS[len(braced[2])]


def _join_lines(source: bytes, tree: Tree) -> bytes:
    """Join continued lines: behind them the parser takes descriptors and variables for words."""
    joined = bytearray(source)
    for found in _CONTINUATION.finditer(source):
        node = tree.root_node.descendant_for_byte_range(found.start(), found.start() + 1)
        if node is not None and node.child_count and node.type not in TEXTS:
            joined[found.start() : found.end()] = b"  "
    return bytes(joined)


def _parser() -> Parser:
    """One for each thread, because another thread may run while it reader."""
    if not hasattr(_local, "parser"):
        _local.parser = Parser(Language(tree_sitter_bash.language()))
    parser: Parser = _local.parser
    return parser


@dataclass(slots=True)
class _BoundedReader:
    """Gives the script to the parser chunk by chunk, with a limit on the number of reader.

    An invalid script can make the parser read it again and again. It cannot be interrupted, but it ends when there is
    nothing more to read.
    """

    source: bytes
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = 200 + len(self.source) // CHUNK_BYTES * 16

    def __call__(self, at: int, _: object) -> bytes:
        self.left -= 1
        return self.source[at : at + CHUNK_BYTES] if self.left >= 0 else b""


def _require_bounded(source: bytes) -> None:
    """Reject pathological input that would take the parser very long."""
    if any(line.count(b"|") > MAX_PIPES for line in _PIPED.sub(b"|", source).split(b"\n")):
        raise NotAnalyzable("a pipeline is too long to be analyzed")
    depth = 0
    for found in _BRACKETS.finditer(source):
        depth = depth + 1 if found[0] in _OPENING else max(0, depth - 1)
        if depth > MAX_DEPTH:
            raise NotAnalyzable("the script is nested too deeply to be analyzed")


def walk(source: bytes, tree: Tree) -> Iterator[TreePosition]:
    """Each node in the order of the script, after checking it. Raises `NotAnalyzable`."""
    root = tree.root_node
    require_blank(source[: root.start_byte])
    require_blank(source[root.end_byte :])
    stack = [TreePosition(root)]
    while stack:
        position = stack.pop()
        if position.depth > MAX_DEPTH or position.nested > MAX_NESTED:
            raise NotAnalyzable("the script is nested too deeply to be analyzed")
        children = position.node.children
        check(source, position.node, children, is_tested=position.is_tested)
        yield position
        stack.extend(_child_position(position, child) for child in reversed(children))


def _child_position(position: TreePosition, child: Node) -> TreePosition:
    node = position.node
    return TreePosition(
        child,
        position.depth + 1,
        position.nested + (node.type in NESTING),
        position.is_repeated or node.type in REPEATING,
        _guards_until(position, child),
        _is_tested(position),
        node.type in JOINING or (position.is_joined and node.type == "redirected_statement"),
    )


def _is_tested(position: TreePosition) -> bool:
    if position.node.type == "test_command":
        return position.node.children[0].type == "["
    return position.is_tested and position.node.type in EXPRESSIONS


def _guards_until(position: TreePosition, child: Node) -> int:
    """In `cd a && b && c` both others run only if `cd` succeeded; a redirect of the last is beside the list."""
    node = position.node
    if node.type == "redirected_statement":
        return max(position.guards_until, node.end_byte) if child.type == "list" else position.guards_until
    if node.type != "list" or not any(part.type == "&&" for part in node.children):
        return 0
    if child.start_byte > node.start_byte:
        return position.guards_until
    return max(position.guards_until, node.end_byte)
