"""Parses shell scripts: each simple command, wherever it is, and each file that is redirected to.

    in the script   lists, pipes, loops, conditions, functions, subshells, substitutions, here-documents
    in a command    what `env`, `sudo`, `xargs`, `find -exec`, `bash -c`, `eval`, … run (`wrappers`)

What cannot be analyzed is `Unclear`: the whole script if its syntax is not certain, or a part of it that only the shell
knows at run time (`$CMD x`, `eval "$X"`). Nothing that could run is left out silently.

An invalid script costs the parser the square of its length. So long scripts are parsed in pieces: here-documents that
the shell does not expand are taken out, and the rest is split at line ends. Any such split is correct: a piece that is
valid by itself leaves the shell's state as it was, and one that is not is no bash.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from tree_sitter import Node, Tree

from app.text.bash.script import (
    Assignment,
    Kind,
    NotAnalyzable,
    Redirect,
    Script,
    ScriptBuilder,
    SimpleCommand,
    Unclear,
    Word,
    names,
    read_word,
)
from app.text.bash.syntax_tree import (
    TreePosition,
    Unparseable,
    encode,
    heredoc_begin,
    is_expanded,
    is_lost_dash,
    parse_tree,
    walk,
)
from app.text.bash.wrappers import BEFORE_KEYWORDS, RESERVED, Inner, unwrap

PIECE_SIZES = (4_000, 8_000, 16_000)
MAX_PIECE_BYTES = 20_000
LONG_HEREDOC_BYTES = 400
PLACEHOLDER = b"here-document\n"

_OPENED = re.compile(rb"<<(-?)[ \t]*(?:'(\w+)'|\"(\w+)\"|\\(\w+)|(\w+))(?=[ \t\n;&|<>)]|$)")
_LIVE = re.compile(rb"[$`\\]")
_INCOMPLETE = re.compile(rb"(?:\\|\||&&|\(|\{)[ \t]*$")
_CONTINUING = re.compile(rb"[ \t\n})#]|(?:then|else|elif|fi|do|done|esac|in)\b|$")

READING = frozenset({"<", "<&"})
DUPLICATING = frozenset({">&", "<&"})
CLOSING = frozenset({">&-", "<&-"})
STRUCTURES = names("""
    pipeline negated_command subshell compound_statement if_statement while_statement for_statement
    c_style_for_statement case_statement function_definition test_command command_substitution process_substitution
    """)
NUMERIC = names("-eq -ne -lt -le -gt -ge -v -R")
_HIDDEN = re.compile(r"\w\[[^\]\n]*?(?:\$\(|`)")
"""A substitution in an array index, which runs when the text is evaluated as a number."""
_QUOTING = re.compile(r"[^\w./-]")
"""Characters that the shell expands again in the target of `>&`, after removing quotes."""
NAMED_WORDS = frozenset({"declaration_command", "unset_command"})


MAX_COMMANDS = 2_000
MAX_NESTED_SCRIPTS = 8
MAX_CACHED_LENGTH = 8_192


@dataclass(slots=True)
class ElidedScript:
    """A script without its long here-documents; `texts` are those, by the offset of their placeholder."""

    source: bytes
    texts: dict[int, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)


def elide(source: bytes, *, keep_heredocs: bool = False) -> ElidedScript:
    """Take out long here-documents, unless they are to be kept, and find the lines where a piece may begin."""
    elided, output = ElidedScript(b""), bytearray()
    lines, at = re.findall(rb"[^\n]*\n|[^\n]+", source), 0
    ends = _HeredocEnds(lines)
    while at < len(lines):
        line = lines[at]
        output += line
        at += 1
        end = ends.after(at, line)
        if end is not None:
            body = b"".join(lines[at:end])
            if len(body) > LONG_HEREDOC_BYTES and not keep_heredocs and not _is_expanded_in(line, body):
                elided.texts[len(output)] = body
                body = PLACEHOLDER
            output += body + lines[end]
            at = end + 1
        if at < len(lines) and not _INCOMPLETE.search(lines[at - 1].rstrip(b"\n")) and not _CONTINUING.match(lines[at]):
            elided.cuts.append(len(output))
    elided.source = bytes(output)
    elided.cuts.append(len(output))
    return elided


class _HeredocEnds:
    """Where here-documents may end: line numbers by text, with and without leading tabs."""

    def __init__(self, lines: list[bytes]) -> None:
        self.whole = dict[bytes, list[int]]()
        self.stripped = dict[bytes, list[int]]()
        for number, line in enumerate(lines):
            text = line.removesuffix(b"\n")
            self.whole.setdefault(text, []).append(number)
            self.stripped.setdefault(text.lstrip(b"\t"), []).append(number)

    def after(self, at: int, line: bytes) -> int | None:
        """The line, from this number on, that ends the here-document that a line seems to open."""
        found = _OPENED.search(line)
        if found is None:
            return None
        tag = next(filter(None, found.groups()[1:]))
        numbers = (self.stripped if found[1] else self.whole).get(tag, [])
        first = bisect_left(numbers, at)
        return numbers[first] if first < len(numbers) else None


def _is_expanded_in(line: bytes, body: bytes) -> bool:
    """Whether the shell would expand anything in a here-document."""
    found = _OPENED.search(line)
    return found is not None and found[5] is not None and _LIVE.search(body) is not None


def pieces(elided: ElidedScript) -> Iterator[tuple[int, bytes, Tree]]:
    """The pieces of a script, each with its offset and its tree. Raises `NotAnalyzable`."""
    source, at = elided.source, 0
    if len(source) <= MAX_PIECE_BYTES:
        yield 0, *parse_tree(source)
        return
    while at < len(source):
        end, piece, tree = _next_piece(source, at, elided.cuts)
        yield at, piece, tree
        at = end


def _next_piece(source: bytes, at: int, cuts: list[int]) -> tuple[int, bytes, Tree]:
    """The next valid piece; if a short one is not valid, a longer one may be."""
    tried = at
    for size in PIECE_SIZES:
        end = cuts[min(bisect_left(cuts, at + size), len(cuts) - 1)]
        if end - at > MAX_PIECE_BYTES:
            end = cuts[max(bisect_right(cuts, at + MAX_PIECE_BYTES) - 1, 0)]
        if end <= tried or end - at > MAX_PIECE_BYTES:
            continue
        try:
            return end, *parse_tree(source[at:end])
        except Unparseable:
            tried = end
    raise NotAnalyzable("a part of the script is too long to be analyzed, or is not valid bash")


class _Reader:
    """Collects the commands, redirects and assignments of a script; each command is passed to `take`."""

    def __init__(self, elided: ElidedScript, take: Callable[[ScriptBuilder, SimpleCommand], None]) -> None:
        self.elided = elided
        self.take = take
        self.source = b""
        self.base = 0
        self.documents = 0
        self.builder = ScriptBuilder()
        self.extra_words: dict[int, list[Word]] = {}
        self.stdin: dict[int, Word] = {}
        self.ends: dict[int, int] = {}
        self.prefixed: set[int] = set()
        self.evaluates = False
        self.has_code = False

    def read(self) -> Script:
        for base, source, tree in pieces(self.elided):
            self.base, self.source = base, source
            for position in walk(source, tree):
                self._handle_node(position)
        if self.documents != len(self.elided.texts):
            raise NotAnalyzable("a here-document could not be located")
        if self.evaluates and self.has_code:
            raise NotAnalyzable("a string with a substitution may be evaluated as an index")
        return self.builder.build()

    def _handle_node(self, position: TreePosition) -> None:
        node = position.node
        self.builder.is_flat &= node.type not in STRUCTURES and node.type != "||"
        match node.type:
            case "command":
                self._command(position)
            case "declaration_command" | "unset_command":
                self._declaration(position)
            case "redirected_statement":
                self._redirected(node)
            case "file_redirect":
                self._redirect(node)
            case "variable_assignment":
                self._assignment(node)
            case "function_definition":
                self._function(node)
            case "&":
                self.builder.is_background = True
            case _:
                self._evaluation(node)

    def _command(self, position: TreePosition) -> None:
        node = position.node
        words, assignments, at = list[Word](), list[Assignment](), node.start_byte
        for child in node.children:
            if b"\n" in self.source[at : child.start_byte]:
                if words or position.is_joined:
                    raise NotAnalyzable("a command seems to continue on the next line")
                # Assignments on a line of their own, which the tree takes for those of the next command.
                self.builder.assignments.extend(assignments)
                assignments.clear()
            at = child.end_byte
            match child.type:
                case "variable_assignment":
                    self.prefixed.add(child.start_byte)
                    assignments.append(self._assigned(child))
                case "file_redirect":
                    words.extend(self._word(extra) for extra in _extras(child))
                case "herestring_redirect":
                    self.stdin[node.start_byte] = self._word(child.children[-1])
                case "heredoc_redirect":
                    raise NotAnalyzable("an unexpected here-document")
                case "comment":
                    continue
                case _:
                    words.append(self._word(child))
        words.extend(self.extra_words.pop(node.start_byte, ()))
        self._require_no_keyword(node, words[0])
        self.evaluates |= words[0].text == "let"
        simple = SimpleCommand(
            tuple(words),
            tuple(assignments),
            at=self.base + max(node.end_byte, self.ends.pop(node.start_byte, 0)),
            guards_until=self.base + position.guards_until,
            is_repeated=position.is_repeated,
            stdin=self.stdin.pop(node.start_byte, None),
        )
        self.take(self.builder, simple)

    def _require_no_keyword(self, node: Node, name: Word) -> None:
        written = next(child for child in node.children if child.type == "command_name")
        if self._text(written) in RESERVED - BEFORE_KEYWORDS:
            raise NotAnalyzable(f"`{name.text}` is where a command is expected")

    def _declaration(self, position: TreePosition) -> None:
        """`export A=b`, `unset A`: commands whose words may be assignments."""
        self.evaluates = True
        words = list[Word]()
        for child in position.node.children:
            if child.type == "variable_assignment":
                self.prefixed.add(child.start_byte)
                assigned = self._assigned(child)
                self.builder.assignments.append(assigned)
                words.append(Word(assigned.one_line, assigned.value.kind))
            elif child.type != "comment":
                words.append(self._word(child) if child.is_named else Word(self._text(child)))
        words.extend(self.extra_words.pop(position.node.start_byte, ()))
        self.builder.commands.append(SimpleCommand(tuple(words), at=self.base + position.node.start_byte))

    def _redirected(self, node: Node) -> None:
        """The tree takes words behind a redirect for more of its targets; they are words of the command."""
        body, redirects = node.children[0], node.children[1:]
        at = body.end_byte
        while body.type in {"list", "pipeline", "negated_command"}:
            body = body.children[-1]
        extras = self.extra_words.setdefault(body.start_byte, [])
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                self.stdin[body.start_byte] = self._document(redirect)
                if is_lost_dash(self.source[at : redirect.start_byte]):
                    extras.append(Word("-"))
            elif redirect.type == "herestring_redirect":
                self.stdin[body.start_byte] = self._word(redirect.children[-1])
            elif redirect.type == "file_redirect":
                self.ends[body.start_byte] = redirect.end_byte
            extras.extend(self._word(extra) for extra in _extras(redirect))
            at = redirect.end_byte
        if extras and body.type not in {"command", *NAMED_WORDS}:
            raise NotAnalyzable("there are words where none is expected")

    def _redirect(self, node: Node) -> None:
        operator = next(child for child in node.children if not child.is_named)
        if operator.type in CLOSING:
            return
        target = self._word(
            next(child for child in node.children if child.is_named and child.type != "file_descriptor")
        )
        if operator.type in DUPLICATING and target.is_static and target.text.rstrip("-").isdigit():
            return
        if operator.type in DUPLICATING and target.text == "-":
            return
        if operator.type in DUPLICATING and target.text.startswith("-"):
            raise NotAnalyzable("a descriptor is closed where a file seems to be written")
        if operator.type in DUPLICATING and _QUOTING.search(target.text):
            reason = "the shell expands this a second time"
            self.builder.unclear.append(Unclear(reason, self._text(node)))
        self.builder.redirects.append(Redirect(self.base + node.start_byte, target, operator.type not in READING))

    def _assignment(self, node: Node) -> None:
        if node.start_byte in self.prefixed:
            self.prefixed.discard(node.start_byte)
        else:
            self.builder.assignments.append(self._assigned(node))

    def _assigned(self, node: Node) -> Assignment:
        name, *_ = node.children
        value = node.child_by_field_name("value")
        if value is None or value.start_byte == value.end_byte:
            return Assignment(self._text(name), Word(""))
        if value.type == "array":
            return Assignment(self._text(name), Word(self._text(value), Kind.DYNAMIC))
        return Assignment(self._text(name), self._word(value))

    def _function(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        if name is not None:
            self.builder.functions.append(self._text(name))

    def _evaluation(self, node: Node) -> None:
        """A text like `a[$(rm b)]` runs the command when it is evaluated as a number, even if quoted."""
        match node.type:
            case "arithmetic_expansion" | "subscript" | "c_style_for_statement" | "((":
                self.evaluates = True
            case "test_operator":
                self.evaluates |= self._text(node) in NUMERIC
            case "raw_string" | "ansi_c_string" | "string" | "word":
                self.has_code |= _HIDDEN.search(self._text(node)) is not None

    def _document(self, node: Node) -> Word:
        """The text of a here-document as one word."""
        parts = {child.type: child for child in node.children}
        body = parts["heredoc_body"]
        is_live = is_expanded(self.source, parts["heredoc_start"])
        begin = heredoc_begin(self.source, node)
        text = self.source[begin : parts["heredoc_end"].start_byte].decode()
        if (elided := self.elided.texts.get(self.base + begin)) is not None:
            self.documents += 1
            text = elided.decode()
        self.has_code |= _HIDDEN.search(text) is not None
        is_dynamic = bool(body.named_children) or (is_live and ("$" in text or "\\" in text))
        if "<<-" in parts:
            text = "".join(line.lstrip("\t") for line in text.splitlines(keepends=True))
        return Word(text, Kind.DYNAMIC if is_dynamic else Kind.STATIC)

    def _word(self, node: Node) -> Word:
        if not node.is_named and node.type not in {"$", "==", "=~"}:
            raise NotAnalyzable(f"`{node.type}` is where a word is expected")
        return read_word(node, self.source)

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode()


def _extras(node: Node) -> Iterator[Node]:
    """The words in a redirect that belong to the command."""
    if node.type == "file_redirect":
        words = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
        yield from words if any(child.type in CLOSING for child in node.children) else words[1:]
    elif node.type == "heredoc_redirect":
        named = [child for child in node.children if child.is_named]
        for index, child in enumerate(node.children):
            if node.field_name_for_child(index) == "argument":
                yield child
            elif child in named and child.type == "file_redirect":
                yield from _extras(child)


def parse(script: str) -> Script | Unclear:
    """What a script runs. Short scripts are cached: the needs and the effect of a call parse the same one."""
    return _parse_cached(script) if len(script) <= MAX_CACHED_LENGTH else _parse(script, 0)


@lru_cache(maxsize=64)
def _parse_cached(script: str) -> Script | Unclear:
    return _parse(script, 0)


def parse_argv(argv: Sequence[str]) -> Script | Unclear:
    """What an argv runs: one command with literal words."""
    if not argv:
        return Unclear("there is no command", "")
    words = tuple(map(Word, argv))
    if any("\0" in word.text for word in words):
        return Unclear("an argument has a NUL", " ".join(argv))
    return _script_of(words, 0)


def _parse(script: str, depth: int) -> Script | Unclear:
    if depth > MAX_NESTED_SCRIPTS:
        return Unclear("commands are nested too deeply to be analyzed", script)
    try:
        return _read(encode(script), depth)
    except NotAnalyzable as doubt:
        return Unclear(doubt.reason, script)


def _read(source: bytes, depth: int) -> Script:
    """What looked like a long here-document may be none; then the script is parsed as it is."""
    elided = elide(source)
    take = partial(_add_command, depth=depth)
    try:
        return _Reader(elided, take).read()
    except NotAnalyzable:
        if not elided.texts:
            raise
    return _Reader(elide(source, keep_heredocs=True), take).read()


def _script_of(words: tuple[Word, ...], depth: int, has_unknown_words: bool = False) -> Script:
    """A script of one command."""
    if depth > MAX_NESTED_SCRIPTS:
        text = " ".join(word.one_line for word in words)
        return Script(unclear=(Unclear("commands are nested too deeply to be analyzed", text),))
    builder = ScriptBuilder()
    _add_command(builder, SimpleCommand(words, has_unknown_words=has_unknown_words), depth)
    return builder.build()


def _add_command(builder: ScriptBuilder, command: SimpleCommand, depth: int) -> None:
    """Add a command, with what it runs in turn."""
    if not command.name.is_static or not command.name.text:
        builder.unclear.append(Unclear("only the shell knows which command this is", command.one_line))
    inner = list[Script]()
    for part in unwrap(command.words, command.stdin):
        entered = _parse_inner(part, command, depth + 1)
        if isinstance(entered, Unclear):
            builder.unclear.append(entered)
        else:
            inner.append(entered)
    builder.commands.append(replace(command, inner=tuple(inner)))
    if len(builder.commands) > MAX_COMMANDS:
        raise NotAnalyzable("the script has too many commands to be analyzed")


def _parse_inner(part: Inner, command: SimpleCommand, depth: int) -> Script | Unclear:
    match part:
        case Unclear():
            return part
        case str():
            found = _parse(part, depth)
            return Unclear(found.reason, command.one_line) if isinstance(found, Unclear) else found
        case _:
            return _script_of(part.words, depth, part.has_unknown_words or command.has_unknown_words)
