"""Reading a script: from the nodes of its trees to the commands and redirects that they mean."""

import re
from collections.abc import Callable, Iterator

from tree_sitter import Node

from app.text.bash import words as bash_words
from app.text.bash.name_lists import names
from app.text.bash.script import Assignment, Found, Redirect, Script, Simple
from app.text.bash.split import ElidedScript, pieces
from app.text.bash.syntax_tree import TreePosition, walk
from app.text.bash.tree_checks import heredoc_begin, is_expanded, lost_dash
from app.text.bash.unclear import Doubtful, Unclear
from app.text.bash.words import Kind, Word
from app.text.bash.wrappers import BEFORE_KEYWORDS, RESERVED

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
        return bash_words.read(node, self.source)

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
