"""Shell commands."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from tree_sitter import Node, Tree

from app.text.bash.script import (
    Assignment,
    Doubtful,
    Found,
    Kind,
    Redirect,
    Script,
    Simple,
    Unclear,
    Word,
    names,
    read_word,
    static,
)
from app.text.bash.syntax_tree import (
    TreePosition,
    Unreadable,
    encode,
    grow,
    heredoc_begin,
    is_expanded,
    lost_dash,
    walk,
)
from app.text.bash.wrappers import BEFORE_KEYWORDS, RESERVED, Inner, unwrap

SIZES = (4_000, 8_000, 16_000)
LONGEST_PIECE = 20_000
LONG_DOCUMENT = 400
PLACEHOLDER = b"here-document\n"

_OPENED = re.compile(rb"<<(-?)[ \t]*(?:'(\w+)'|\"(\w+)\"|\\(\w+)|(\w+))(?=[ \t\n;&|<>)]|$)")
_LIVE = re.compile(rb"[$`\\]")
_GOING_ON = re.compile(rb"(?:\\|\||&&|\(|\{)[ \t]*$")
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
"""A substitution in an index, which runs when the text is taken for a number."""
_QUOTING = re.compile(r"[^\w./-]")
"""What the shell looks at once more in the target of `>&`, after its quotes are gone."""
NAMED_WORDS = frozenset({"declaration_command", "unset_command"})

__all__ = ["Assignment", "Redirect", "Script", "Simple", "Unclear", "of_argv", "parse"]

MOST_COMMANDS = 2_000
MOST_WRAPPED = 8
REMEMBERED = 8_192


@dataclass(slots=True)
class ElidedScript:
    """A script without its long here-documents: `texts` are those, by where a placeholder stands for them."""

    source: bytes
    texts: dict[int, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)


def elide(source: bytes, *, keeps_documents: bool = False) -> ElidedScript:
    """Takes long here-documents out, unless they are to be kept, and marks where lines may begin a piece."""
    elided, kept = ElidedScript(b""), bytearray()
    lines, at = re.findall(rb"[^\n]*\n|[^\n]+", source), 0
    ends = _Ends(lines)
    while at < len(lines):
        line = lines[at]
        kept += line
        at += 1
        end = ends.after(at, line)
        if end is not None:
            body = b"".join(lines[at:end])
            if len(body) > LONG_DOCUMENT and not keeps_documents and not _is_live(line, body):
                elided.texts[len(kept)] = body
                body = PLACEHOLDER
            kept += body + lines[end]
            at = end + 1
        if at < len(lines) and not _GOING_ON.search(lines[at - 1].rstrip(b"\n")) and not _CONTINUING.match(lines[at]):
            elided.cuts.append(len(kept))
    elided.source = bytes(kept)
    elided.cuts.append(len(kept))
    return elided


class _Ends:
    """Where here-documents may end: the numbers of lines by their text, with and without tabs before it."""

    def __init__(self, lines: list[bytes]) -> None:
        self.whole = dict[bytes, list[int]]()
        self.stripped = dict[bytes, list[int]]()
        for number, line in enumerate(lines):
            text = line.removesuffix(b"\n")
            self.whole.setdefault(text, []).append(number)
            self.stripped.setdefault(text.lstrip(b"\t"), []).append(number)

    def after(self, at: int, line: bytes) -> int | None:
        """The line, from this number on, that ends the here-document which a line seems to open."""
        found = _OPENED.search(line)
        if found is None:
            return None
        tag = next(filter(None, found.groups()[1:]))
        numbers = (self.stripped if found[1] else self.whole).get(tag, [])
        first = bisect_left(numbers, at)
        return numbers[first] if first < len(numbers) else None


def _is_live(line: bytes, body: bytes) -> bool:
    """Whether the shell would look into a here-document and find something there."""
    found = _OPENED.search(line)
    return found is not None and found[5] is not None and _LIVE.search(body) is not None


def pieces(elided: ElidedScript) -> Iterator[tuple[int, bytes, Tree]]:
    """The trees of a script one after the other, each with where it begins. Raises `Doubtful`."""
    source, at = elided.source, 0
    if len(source) <= LONGEST_PIECE:
        yield 0, *grow(source)
        return
    while at < len(source):
        end, piece, tree = _next(source, at, elided.cuts)
        yield at, piece, tree
        at = end


def _next(source: bytes, at: int, cuts: list[int]) -> tuple[int, bytes, Tree]:
    """The next piece that is whole; when a short one is not, a longer one may be."""
    tried = at
    for size in SIZES:
        end = cuts[min(bisect_left(cuts, at + size), len(cuts) - 1)]
        if end - at > LONGEST_PIECE:
            end = cuts[max(bisect_right(cuts, at + LONGEST_PIECE) - 1, 0)]
        if end <= tried or end - at > LONGEST_PIECE:
            continue
        try:
            return end, *grow(source[at:end])
        except Unreadable:
            tried = end
    raise Doubtful("a part of the script is too long to be read, or is not bash")


class Reader:
    """Goes through a script once and notes what it finds; each command is given to `take`."""

    def __init__(self, elided: ElidedScript, take: Callable[[Found, Simple], None]) -> None:
        self.elided = elided
        self.take = take
        self.source = b""
        self.base = 0
        self.documents = 0
        self.found = Found()
        self.more: dict[int, list[Word]] = {}
        self.stdin: dict[int, Word] = {}
        self.ends: dict[int, int] = {}
        self.prefixed: set[int] = set()
        self.evaluates = False
        self.has_code = False

    def read(self) -> Script:
        for base, source, tree in pieces(self.elided):
            self.base, self.source = base, source
            for place in walk(source, tree):
                self._note(place)
        if self.documents != len(self.elided.texts):
            raise Doubtful("a here-document is none")
        if self.evaluates and self.has_code:
            raise Doubtful("a text with a substitution in it may be evaluated as an index")
        return self.found.script()

    def _note(self, place: TreePosition) -> None:
        node = place.node
        self.found.is_flat &= node.type not in STRUCTURES and node.type != "||"
        match node.type:
            case "command":
                self._command(place)
            case "declaration_command" | "unset_command":
                self._declaration(place)
            case "redirected_statement":
                self._redirected(node)
            case "file_redirect":
                self._redirect(node)
            case "variable_assignment":
                self._assignment(node)
            case "function_definition":
                self._function(node)
            case "&":
                self.found.is_background = True
            case _:
                self._evaluation(node)

    def _command(self, place: TreePosition) -> None:
        node = place.node
        words, assignments, at = list[Word](), list[Assignment](), node.start_byte
        for child in node.children:
            if b"\n" in self.source[at : child.start_byte]:
                if words or place.is_joined:
                    raise Doubtful("a command ends with its line, and seems to go on")
                # The tree has variables on a line of their own before the next command; they are set for good.
                self.found.assignments.extend(assignments)
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
                    raise Doubtful("a here-document stands where none is expected")
                case "comment":
                    continue
                case _:
                    words.append(self._word(child))
        words.extend(self.more.pop(node.start_byte, ()))
        self._require_no_keyword(node, words[0])
        self.evaluates |= words[0].text == "let"
        simple = Simple(
            tuple(words),
            tuple(assignments),
            at=self.base + max(node.end_byte, self.ends.pop(node.start_byte, 0)),
            sure_until=self.base + place.sure_until,
            is_repeated=place.is_repeated,
            stdin=self.stdin.pop(node.start_byte, None),
        )
        self.take(self.found, simple)

    def _require_no_keyword(self, node: Node, name: Word) -> None:
        written = next(child for child in node.children if child.type == "command_name")
        if self._text(written) in RESERVED - BEFORE_KEYWORDS:
            raise Doubtful(f"`{name.text}` stands where a command is expected")

    def _declaration(self, place: TreePosition) -> None:
        """`export A=b`, `unset A`: commands whose words may be assignments."""
        self.evaluates = True
        words = list[Word]()
        for child in place.node.children:
            if child.type == "variable_assignment":
                self.prefixed.add(child.start_byte)
                assigned = self._assigned(child)
                self.found.assignments.append(assigned)
                words.append(Word(assigned.plain, assigned.value.kind))
            elif child.type != "comment":
                words.append(self._word(child) if child.is_named else Word(self._text(child)))
        words.extend(self.more.pop(place.node.start_byte, ()))
        self.found.commands.append(Simple(tuple(words), at=self.base + place.node.start_byte))

    def _redirected(self, node: Node) -> None:
        """The tree takes words after a redirect for more targets of it; they are words of the command."""
        body, redirects = node.children[0], node.children[1:]
        at = body.end_byte
        while body.type in {"list", "pipeline", "negated_command"}:
            body = body.children[-1]
        extras = self.more.setdefault(body.start_byte, [])
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                self.stdin[body.start_byte] = self._document(redirect)
                if lost_dash(self.source[at : redirect.start_byte]):
                    extras.append(Word("-"))
            elif redirect.type == "herestring_redirect":
                self.stdin[body.start_byte] = self._word(redirect.children[-1])
            elif redirect.type == "file_redirect":
                self.ends[body.start_byte] = redirect.end_byte
            extras.extend(self._word(extra) for extra in _extras(redirect))
            at = redirect.end_byte
        if extras and body.type not in {"command", *NAMED_WORDS}:
            raise Doubtful("words stand where the shell expects none")

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
            raise Doubtful("a descriptor is closed where a file seems to be written")
        if operator.type in DUPLICATING and _QUOTING.search(target.text):
            reason = "the shell looks for substitutions in this once more"
            self.found.unclear.append(Unclear(reason, self._text(node)))
        self.found.redirects.append(Redirect(self.base + node.start_byte, target, operator.type not in READING))

    def _assignment(self, node: Node) -> None:
        if node.start_byte in self.prefixed:
            self.prefixed.discard(node.start_byte)
        else:
            self.found.assignments.append(self._assigned(node))

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
            self.found.functions.append(self._text(name))

    def _evaluation(self, node: Node) -> None:
        """A text like `a[$(rm b)]` runs the command when it is taken for a number, however it was quoted."""
        match node.type:
            case "arithmetic_expansion" | "subscript" | "c_style_for_statement" | "((":
                self.evaluates = True
            case "test_operator":
                self.evaluates |= self._text(node) in NUMERIC
            case "raw_string" | "ansi_c_string" | "string" | "word":
                self.has_code |= _HIDDEN.search(self._text(node)) is not None

    def _document(self, node: Node) -> Word:
        """A here-document as one word."""
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
            raise Doubtful(f"`{node.type}` stands where a word is expected")
        return read_word(node, self.source)

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode()


def _extras(node: Node) -> Iterator[Node]:
    """The words in a redirect that are none of its own."""
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
    """What a script runs."""
    return _remembered(script) if len(script) <= REMEMBERED else _parse(script, 0)


@lru_cache(maxsize=64)
def _remembered(script: str) -> Script | Unclear:
    """Whoever is asked for a script's needs is soon asked whether it is safe."""
    return _parse(script, 0)


def of_argv(argv: Sequence[str]) -> Script | Unclear:
    """What an argv runs: one command, whose words are as they are."""
    if not argv:
        return Unclear("there is no command", "")
    words = tuple(static(text) for text in argv)
    if any("\0" in word.text for word in words):
        return Unclear("an argument holds a NUL", " ".join(argv))
    return _of_words(words, 0)


def _parse(script: str, depth: int) -> Script | Unclear:
    if depth > MOST_WRAPPED:
        return Unclear("commands are wrapped in each other too deeply to be read", script)
    try:
        return _read(encode(script), depth)
    except Doubtful as doubt:
        return Unclear(doubt.reason, script)


def _read(source: bytes, depth: int) -> Script:
    """What seemed to be a long here-document may turn out to be none; then it is read as it stands."""
    elided = elide(source)
    take = partial(_take, depth=depth)
    try:
        return Reader(elided, take).read()
    except Doubtful:
        if not elided.texts:
            raise
    return Reader(elide(source, keeps_documents=True), take).read()


def _of_words(words: tuple[Word, ...], depth: int, is_open: bool = False) -> Script:
    """A script of one command."""
    if depth > MOST_WRAPPED:
        text = " ".join(word.plain for word in words)
        return Script(unclear=(Unclear("commands are wrapped in each other too deeply to be read", text),))
    found = Found()
    _take(found, Simple(words, is_open=is_open), depth)
    return found.script()


def _take(found: Found, command: Simple, depth: int) -> None:
    """Adds a command, with what is inside it."""
    if not command.name.is_static or not command.name.text:
        found.unclear.append(Unclear("only the shell will know which command this is", command.plain))
    inner = list[Script]()
    for part in unwrap(command.words, command.stdin):
        entered = _enter(part, command, depth + 1)
        if isinstance(entered, Unclear):
            found.unclear.append(entered)
        else:
            inner.append(entered)
    found.commands.append(replace(command, inner=tuple(inner)))
    if len(found.commands) > MOST_COMMANDS:
        raise Doubtful("the script has too many commands to be read")


def _enter(part: Inner, command: Simple, depth: int) -> Script | Unclear:
    match part:
        case Unclear():
            return part
        case str():
            found = _parse(part, depth)
            return Unclear(found.reason, command.plain) if isinstance(found, Unclear) else found
        case _:
            return _of_words(part.words, depth, part.is_open or command.is_open)
