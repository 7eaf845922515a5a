"""Commands that run other commands: what is inside `sudo`, `env`, `xargs`, `find -exec`, `bash -c`, `eval`, …

An unknown option could take the next word as its value, and then another command would follow; so it makes the command
unclear.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.text.bash.script import Kind, Unclear, Word, names

Words = Sequence[Word]


@dataclass(frozen=True, slots=True)
class Command:
    """The words of an inner command; `has_unknown_words`: it gets more of them at run time."""

    words: tuple[Word, ...]
    has_unknown_words: bool = False


Inner = Command | str | Unclear
"""A command, a script, or what cannot be analyzed."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command that runs another: short ones without and with a value, and long ones likewise.

    `operands` precede the inner command; with an option of `ends` there is none.
    """

    flags: str = ""
    valued: str = ""
    long: str = ""
    long_valued: str = ""
    ends: str = ""
    operands: int = 0
    takes_assignments: bool = False


WRAPPERS: dict[str, Options] = {
    "builtin": Options(),
    "busybox": Options(ends="--help --list --list-full"),
    "caffeinate": Options("disu", "tw"),
    "chroot": Options("", "", "skip-chdir", "groups userspec", operands=1),
    "chrt": Options("abdfimorRv", "DPT", "all-tasks batch deadline fifo idle other reset-on-fork rr", operands=1),
    "command": Options("p", ends="-v -V"),
    "coproc": Options(takes_assignments=True),
    "doas": Options("Lns", "Cu"),
    "env": Options("iv0", "uC", "ignore-environment null debug", "unset chdir", takes_assignments=True),
    "exec": Options("cl", "a"),
    "fakeroot": Options("u", "lsib", "unknown-is-real", "lib faked"),
    "ionice": Options("t", "cnpPu", "ignore", "class classdata", ends="-p -P -u"),
    "nice": Options("0123456789", "n", "", "adjustment"),
    "nohup": Options(ends="--help --version"),
    "setarch": Options("vRFZLXBI3T", "p", operands=1),
    "setsid": Options("cfw", "", "ctty fork wait"),
    "stdbuf": Options("", "ioe", "", "input output error"),
    "strace": Options("cCdfFhikqrtTvVwxyYzZn", "abeEIoOpPsSuUX", "follow-forks output-separately", "output trace"),
    "sudo": Options(
        "ABbEHKkNnPSv",
        "CDghpRrTtUu",
        "askpass background preserve-env non-interactive preserve-groups stdin set-home",
        "user group chdir close-from host prompt role type command-timeout other-user chroot",
        ends="-l --list -V --version --help -e --edit --validate",
        takes_assignments=True,
    ),
    "taskset": Options("a", "", "all-tasks", operands=1),
    "time": Options("pvaqV", "fo", "portability verbose append quiet", "format output", takes_assignments=True),
    "timeout": Options("v", "ks", "preserve-status foreground verbose", "kill-after signal", operands=1),
    "toybox": Options(),
    "unbuffer": Options("p"),
    "xargs": Options(
        "0rtpxo",
        "adEILnPs",
        "null no-run-if-empty verbose interactive exit open-tty show-limits",
        "arg-file delimiter max-args max-procs max-chars max-lines process-slot-var replace",
    ),
}
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash", "mksh", "rbash"})
SHELL_LONG = names("--login --norc --noprofile --posix --restricted --verbose --noediting --debugger")
SHELL_LONG_VALUED = frozenset({"--rcfile", "--init-file"})
SHELL_ENDS = frozenset({"--version", "--help", "--dump-strings", "--dump-po-strings"})
RESERVED = names("if then elif else fi do done case esac while until for select function in { } ! [[ ]] time coproc")
BEFORE_KEYWORDS = frozenset({"time", "coproc"})
EXECUTING = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


def unwrap(words: Words, stdin: Word | None) -> Iterator[Inner]:
    """What a command runs in turn. `stdin` is its here-document, if any."""
    if not words[0].is_static:
        return
    name = basename(words[0].text)
    if special := _SPECIAL.get(name):
        yield from special(words, stdin)
    elif name in SHELLS:
        yield from _shell(words, stdin)
    elif options := WRAPPERS.get(name):
        yield from _inner_command(words, options, has_unknown_words=name == "xargs")


def basename(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _unclear(reason: str, words: Words) -> Unclear:
    return Unclear(reason, " ".join(word.one_line for word in words))


class _UnknownOption(Exception):
    """An option that may or may not take the next word."""


def _inner_command(words: Words, options: Options, *, has_unknown_words: bool = False) -> Iterator[Inner]:
    """The command behind the options."""
    try:
        at = _skip_options(words, options)
    except _UnknownOption:
        yield _unclear("an option is unknown, so it is not certain which command follows", words)
        return
    if at is None:
        return
    rest = tuple(words[at:])
    if rest and options.operands:
        if any(word.kind is Kind.DYNAMIC for word in rest[: options.operands]):
            yield _unclear("only the shell knows which command follows", words)
            return
        rest = rest[options.operands :]
    if rest and words[0].text in BEFORE_KEYWORDS and rest[0].text in RESERVED:
        yield _unclear("a keyword follows where a command is expected", words)
    elif rest:
        yield Command(_replace_placeholders(words[:at], rest) if has_unknown_words else rest, has_unknown_words)


def _skip_options(words: Words, options: Options) -> int | None:
    """Where the options end; None if no command is run."""
    at, ends = 1, options.ends.split()
    while at < len(words):
        text = words[at].text
        if options.takes_assignments and _ASSIGNMENT.match(text):
            at += 1
            continue
        if not words[at].is_static:
            return at
        if text in ends:
            return None
        if text == "--":
            return at + 1
        if not text.startswith("-") or text == "-":
            return at
        at += _option_width(text, options)
    return at


def _option_width(text: str, options: Options) -> int:
    """How many words an option takes: itself, and perhaps its value."""
    if text.startswith("--"):
        name, equals, _ = text[2:].partition("=")
        if name in options.long_valued.split():
            return 1 if equals else 2
        if name in options.long.split():
            return 1
        raise _UnknownOption
    for index, flag in enumerate(text[1:], 1):
        if flag in options.valued:
            return 1 if text[index + 1 :] else 2
        if flag not in options.flags:
            raise _UnknownOption
    return 1


def _replace_placeholders(options: Words, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What `xargs -I{}` inserts is not known."""
    texts = [word.text for word in options]
    placeholders = [texts[at + 1] for at, text in enumerate(texts[:-1]) if text == "-I"]
    placeholders += [text[2:] for text in texts if text.startswith("-I") and len(text) > 2]
    placeholders += [text.partition("=")[2] for text in texts if text.startswith("--replace=")]
    return tuple(_with_placeholders(word, placeholders) for word in words)


def _with_placeholders(word: Word, placeholders: Sequence[str]) -> Word:
    return Word(word.text, Kind.DYNAMIC) if any(placeholder in word.text for placeholder in placeholders) else word


def _find(words: Words, _: Word | None) -> Iterator[Inner]:
    """Each `-exec command {} ;`."""
    at = 1
    while at < len(words):
        if words[at].text not in EXECUTING:
            at += 1
            continue
        start = at + 1
        end = next((end for end in range(start, len(words)) if _ends_exec(words, end)), None)
        if end is None or end == start:
            yield _unclear("the command of `-exec` has no end", words)
            return
        yield Command(
            tuple(_with_placeholders(word, ["{}"]) for word in words[start:end]),
            has_unknown_words=words[end].text == "+",
        )
        at = end + 1


def _ends_exec(words: Words, at: int) -> bool:
    return words[at].text == ";" or (words[at].text == "+" and words[at - 1].text == "{}")


def _eval(words: Words, _: Word | None) -> Iterator[Inner]:
    rest = words[2:] if len(words) > 1 and words[1].text == "--" else words[1:]
    yield from _script(" ".join(word.text for word in rest), rest, words)


def _script(text: str, of: Words, words: Words) -> Iterator[Inner]:
    if all(word.is_static for word in of):
        yield text
    else:
        yield _unclear("only the shell knows the script that is run", words)


def _watch(words: Words, _: Word | None) -> Iterator[Inner]:
    options = Options("bcCdegtpwxr", "nqs", "beep color differences errexit chgexit no-title precise", "interval")
    for inner in _inner_command(words, options):
        if isinstance(inner, Command):
            yield from _script(" ".join(word.text for word in inner.words), inner.words, words)
        else:
            yield inner


def _shell(words: Words, stdin: Word | None) -> Iterator[Inner]:
    """`bash -lc script`, or a shell that reads its script from stdin or a file."""
    at, has_script = 1, False
    while at < len(words):
        text = words[at].text
        if words[at].kind is Kind.DYNAMIC:
            break
        if text in SHELL_ENDS:
            return
        if text in {"--", "-"}:
            at += 1
            break
        if text.startswith("--"):
            if text not in SHELL_LONG | SHELL_LONG_VALUED:
                yield _unclear("an option of the shell is unknown", words)
                return
            at += 2 if text in SHELL_LONG_VALUED else 1
            continue
        if text[:1] not in {"-", "+"}:
            break
        has_script |= "c" in text[1:]
        at += 1 + text[1:].count("o") + text[1:].count("O")
    yield from _shell_script(words, at, has_script, stdin)


def _shell_script(words: Words, at: int, has_script: bool, stdin: Word | None) -> Iterator[Inner]:
    flags = "".join(word.text for word in words[1:at] if word.text[:1] == "-" and word.text[:2] != "--")
    if has_script:
        yield from _script(words[at].text, words[at : at + 1], words) if at < len(words) else ()
    elif at < len(words) and "s" not in flags:
        if words[at].text.startswith("/dev/") or words[at].kind is Kind.DYNAMIC:
            yield _unclear("only the shell knows the script that is run", words)
    elif stdin is not None:
        yield from _script(stdin.text, [stdin], words)
    else:
        yield _unclear("a shell reads its script from an unknown source", words)


def _source(words: Words, _: Word | None) -> Iterator[Inner]:
    if len(words) > 1 and (not words[1].is_static or words[1].text.startswith("/dev/")):
        yield _unclear("only the shell knows the script that is run", words)


def _trap(words: Words, _: Word | None) -> Iterator[Inner]:
    rest = words[2:] if len(words) > 1 and words[1].text == "--" else words[1:]
    if len(rest) > 1 and rest[0].text not in {"-", "", "-l", "-p"}:
        yield from _script(rest[0].text, rest[:1], words)


def _alias(words: Words, _: Word | None) -> Iterator[Inner]:
    for word in words[1:]:
        if "=" in word.text or not word.is_static:
            yield from _script(word.text.partition("=")[2], [word], words)


def _su(words: Words, stdin: Word | None) -> Iterator[Inner]:
    """`su x -c script`, `script -qc script file`."""
    for at, word in enumerate(words[1:], 1):
        if word.kind is Kind.DYNAMIC:
            yield _unclear("only the shell knows the script that is run", words)
            return
        if word.text.startswith("--command="):
            yield word.text.partition("=")[2]
            return
        if word.text == "--command" or (re.fullmatch(r"-[a-zA-Z]*c", word.text) and word.text != "--c"):
            yield from _script(words[at + 1].text, words[at + 1 : at + 2], words) if at + 1 < len(words) else ()
            return
    yield _unclear("a shell reads its script from an unknown source", words)


def _flock(words: Words, _: Word | None) -> Iterator[Inner]:
    options = Options(
        "snuxeoFv", "wE", "shared nonblock unlock exclusive close no-fork verbose", "timeout wait conflict-exit-code"
    )
    for inner in _inner_command(
        words, Options(options.flags, options.valued, options.long, options.long_valued, operands=1)
    ):
        if isinstance(inner, Command) and inner.words[0].text in {"-c", "--command"}:
            yield from _script(" ".join(word.text for word in inner.words[1:2]), inner.words[1:2], words)
        else:
            yield inner


_SPECIAL: dict[str, Callable[[Words, Word | None], Iterator[Inner]]] = {
    ".": _source,
    "alias": _alias,
    "eval": _eval,
    "find": _find,
    "flock": _flock,
    "runuser": _su,
    "script": _su,
    "source": _source,
    "su": _su,
    "trap": _trap,
    "watch": _watch,
}
