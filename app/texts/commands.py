"""Shell commands, read: each simple command of a script, wherever it stands, and each file it is redirected to.

    in the script   lists, pipes, loops, conditions, functions, subshells, substitutions, here-documents
    in a command    what `env`, `sudo`, `xargs`, `find -exec`, `bash -c`, `eval`, … run (`command_wrappers`)

What cannot be read is `Unclear`: the whole script where its syntax is not certain, a part of it where only the running
shell will know (`$CMD x`, `eval "$X"`). Nothing that could run is left out in silence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from app.texts import command_words
from app.texts.command_checks import heredoc_begin, is_expanded
from app.texts.command_doubts import Doubtful, Unclear
from app.texts.command_trees import Place, encode, grow, walk
from app.texts.command_words import Kind, Word
from app.texts.command_wrappers import Inner, unwrap
from app.texts.names import names

MOST_COMMANDS = 2_000
MOST_WRAPPED = 8
RESERVED = names("if then elif else fi do done case esac while until for select function in { } ! [[ ]]")
READING = frozenset({"<", "<&"})
DUPLICATING = frozenset({">&", "<&"})
CLOSING = frozenset({">&-", "<&-"})
STRUCTURES = names("""
    pipeline negated_command subshell compound_statement if_statement while_statement for_statement
    c_style_for_statement case_statement function_definition test_command command_substitution process_substitution
    """)
NAMED_WORDS = frozenset({"declaration_command", "unset_command"})


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, before a command or by itself."""

    name: str
    value: Word

    @property
    def plain(self) -> str:
        return f"{self.name}={self.value.plain}"


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that something is read from or written to. Those between descriptors are left out."""

    at: int
    target: Word
    is_write: bool


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command, and what it runs in turn.

    `sure_until` is the byte of the script up to which everything runs only if this command succeeded. One that is open
    gets more words than are known; `stdin` is the here-document it reads.
    """

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    inner: "tuple[Script, ...]" = ()
    at: int = 0
    sure_until: int = 0
    is_repeated: bool = False
    is_open: bool = False
    stdin: Word | None = None

    @property
    def name(self) -> Word:
        return self.words[0]

    @property
    def plain(self) -> str:
        return " ".join(word.plain for word in self.words)


@dataclass(frozen=True, slots=True)
class Script:
    """What a script runs, in its order. `unclear` are the parts of which nobody can say it.

    A flat script is simple commands with `&&` between them and nothing else.
    """

    commands: tuple[Simple, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unclear: tuple[Unclear, ...] = ()
    functions: tuple[str, ...] = ()
    is_background: bool = False
    is_flat: bool = True

    def every(self) -> Iterator["Script"]:
        """The script and those inside its commands."""
        yield self
        for command in self.commands:
            for inner in command.inner:
                yield from inner.every()


def parse(script: str) -> Script | Unclear:
    """What a script runs."""
    return _parse(script, 0)


def of_argv(argv: Sequence[str]) -> Script | Unclear:
    """What an argv runs: one command, whose words are as they are."""
    if not argv:
        return Unclear("there is no command", "")
    words = tuple(command_words.static(text) for text in argv)
    if any("\0" in word.text for word in words):
        return Unclear("an argument holds a NUL", " ".join(argv))
    return _of_words(words, 0)


def _parse(script: str, depth: int) -> Script | Unclear:
    if depth > MOST_WRAPPED:
        return Unclear("commands are wrapped in each other too deeply to be read", script)
    try:
        source = encode(script)
        return _Reader(source, depth).read()
    except Doubtful as doubt:
        return Unclear(doubt.reason, script)


def _of_words(words: tuple[Word, ...], depth: int, is_open: bool = False) -> Script:
    """A script of one command."""
    if depth > MOST_WRAPPED:
        text = " ".join(word.plain for word in words)
        return Script(unclear=(Unclear("commands are wrapped in each other too deeply to be read", text),))
    found = _Found()
    found.add(Simple(words, is_open=is_open), depth)
    return found.script()


@dataclass(slots=True)
class _Found:
    commands: list[Simple] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    is_background: bool = False
    is_flat: bool = True

    def add(self, command: Simple, depth: int) -> None:
        """A command, with what is inside it."""
        if not command.name.is_static or not command.name.text:
            self.unclear.append(Unclear("only the shell will know which command this is", command.plain))
        inner = list[Script]()
        for part in unwrap(command.words, command.stdin):
            self._enter(part, command, inner, depth)
        self.commands.append(replace(command, inner=tuple(inner)))
        if len(self.commands) > MOST_COMMANDS:
            raise Doubtful("the script has too many commands to be read")

    def _enter(self, part: Inner, command: Simple, inner: list[Script], depth: int) -> None:
        match part:
            case Unclear():
                self.unclear.append(part)
            case str():
                found = _parse(part, depth + 1)
                if isinstance(found, Unclear):
                    self.unclear.append(Unclear(found.reason, command.plain))
                else:
                    inner.append(found)
            case _:
                inner.append(_of_words(part.words, depth + 1, part.is_open or command.is_open))

    def script(self) -> Script:
        return Script(
            tuple(self.commands),
            tuple(self.redirects),
            tuple(self.assignments),
            tuple(self.unclear),
            tuple(self.functions),
            self.is_background,
            self.is_flat,
        )


class _Reader:
    """Goes through a tree once and notes what it finds."""

    def __init__(self, source: bytes, depth: int) -> None:
        self.source = source
        self.depth = depth
        self.found = _Found()
        self.more: dict[int, list[Node]] = {}
        self.stdin: dict[int, Word] = {}
        self.prefixed: set[int] = set()
        self.evaluates = False
        self.has_code = False

    def read(self) -> Script:
        self.source, tree = grow(self.source)
        for place in walk(self.source, tree):
            self._note(place)
        if self.evaluates and self.has_code:
            raise Doubtful("a text with a substitution in it may be evaluated as an index")
        return self.found.script()

    def _note(self, place: Place) -> None:
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

    def _command(self, place: Place) -> None:
        node = place.node
        words, assignments = list[Word](), list[Assignment]()
        for child in node.children:
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
        words.extend(self._word(extra) for extra in self.more.pop(node.start_byte, ()))
        self._require_no_keyword(node, words[0])
        self.evaluates |= words[0].text == "let"
        simple = Simple(
            tuple(words),
            tuple(assignments),
            at=node.start_byte,
            sure_until=place.sure_until,
            is_repeated=place.is_repeated,
            stdin=self.stdin.pop(node.start_byte, None),
        )
        self.found.add(simple, self.depth)

    def _require_no_keyword(self, node: Node, name: Word) -> None:
        written = next(child for child in node.children if child.type == "command_name")
        if self._text(written) in RESERVED:
            raise Doubtful(f"`{name.text}` stands where a command is expected")

    def _declaration(self, place: Place) -> None:
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
        extras = self.more.pop(place.node.start_byte, ())
        words.extend(self._word(extra) for extra in extras)
        self.found.commands.append(Simple(tuple(words), at=place.node.start_byte, sure_until=place.sure_until))

    def _redirected(self, node: Node) -> None:
        """The tree takes words after a redirect for more targets of it; they are words of the command."""
        body, redirects = node.children[0], node.children[1:]
        while body.type in {"list", "pipeline", "negated_command"}:
            body = body.children[-1]
        for redirect in redirects:
            extras = list(_extras(redirect))
            if redirect.type == "heredoc_redirect":
                self.stdin[body.start_byte] = self._document(redirect)
            elif redirect.type == "herestring_redirect":
                self.stdin[body.start_byte] = self._word(redirect.children[-1])
            if extras and body.type not in {"command", *NAMED_WORDS}:
                raise Doubtful("words stand where the shell expects none")
            self.more.setdefault(body.start_byte, []).extend(extras)

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
        self.found.redirects.append(Redirect(node.start_byte, target, operator.type not in READING))

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
            case "arithmetic_expansion" | "subscript" | "c_style_for_statement" | "test_command" | "((":
                self.evaluates = True
            case "raw_string" | "ansi_c_string" | "string" | "heredoc_body" | "word":
                self.has_code |= _hides_code(self._text(node))

    def _document(self, node: Node) -> Word:
        """A here-document as one word."""
        parts = {child.type: child for child in node.children}
        body = parts["heredoc_body"]
        is_live = is_expanded(self.source, parts["heredoc_start"])
        text = self.source[heredoc_begin(self.source, node) : parts["heredoc_end"].start_byte].decode()
        is_dynamic = bool(body.named_children) or (is_live and ("$" in text or "\\" in text))
        if "<<-" in parts:
            text = "".join(line.lstrip("\t") for line in text.splitlines(keepends=True))
        return Word(text, Kind.DYNAMIC if is_dynamic else Kind.STATIC)

    def _word(self, node: Node) -> Word:
        if not node.is_named and node.type not in {"$", "==", "=~"}:
            raise Doubtful(f"`{node.type}` stands where a word is expected")
        return command_words.read(node, self.source)

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


def _hides_code(text: str) -> bool:
    opened = text.find("[")
    return opened >= 0 and ("$(" in text[opened:] or "`" in text[opened:])
