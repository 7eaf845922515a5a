"""Commands that run other commands: what is inside `sudo`, `env`, `xargs`, `find -exec`, `bash -c`, `eval`, …

An option that is not known here could take the next word as its value, and then what follows would be another command;
so it makes the command unclear rather than be guessed at.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.text.bash.script import Kind, Unclear, Word, names

Words = Sequence[Word]


@dataclass(frozen=True, slots=True)
class Command:
    """The words of an inner command. One that is open gets more words, which nobody knows."""

    words: tuple[Word, ...]
    is_open: bool = False


Inner = Command | str | Unclear
"""A command, a script, or what cannot be said."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command that runs another: letters without and with a value, the same of long ones.

    `operands` come before the inner command, `ends` are options after which there is none.
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
    """What a command runs in turn. `stdin` is a here-document, if it gets one."""
    if not words[0].is_static:
        return
    name = basename(words[0].text)
    if special := _SPECIAL.get(name):
        yield from special(words, stdin)
    elif name in SHELLS:
        yield from _shell(words, stdin)
    elif options := WRAPPERS.get(name):
        yield from _behind(words, options, is_open=name == "xargs")


def basename(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _unclear(reason: str, words: Words) -> Unclear:
    return Unclear(reason, " ".join(word.plain for word in words))


class _UnknownOption(Exception):
    """An option that may or may not take the next word."""


def _behind(words: Words, options: Options, *, is_open: bool = False) -> Iterator[Inner]:
    """The command behind the options."""
    try:
        at = _skip(words, options)
    except _UnknownOption:
        yield _unclear("an option is not known, so that it is not certain which command follows", words)
        return
    if at is None:
        return
    rest = tuple(words[at:])
    if rest and options.operands:
        if any(word.kind is Kind.DYNAMIC for word in rest[: options.operands]):
            yield _unclear("only the shell will know which command follows", words)
            return
        rest = rest[options.operands :]
    if rest and words[0].text in BEFORE_KEYWORDS and rest[0].text in RESERVED:
        yield _unclear("a keyword follows where a command is expected", words)
    elif rest:
        yield Command(_with_holes(words[:at], rest) if is_open else rest, is_open)


def _skip(words: Words, options: Options) -> int | None:
    """Where the options end. None when no command is run."""
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
        at += _width(text, options)
    return at


def _width(text: str, options: Options) -> int:
    """How many words an option takes: itself, and perhaps its value."""
    if text.startswith("--"):
        name, equals, _ = text[2:].partition("=")
        if name in options.long_valued.split():
            return 1 if equals else 2
        if name in options.long.split():
            return 1
        raise _UnknownOption
    for index, letter in enumerate(text[1:], 1):
        if letter in options.valued:
            return 1 if text[index + 1 :] else 2
        if letter not in options.flags:
            raise _UnknownOption
    return 1


def _with_holes(options: Words, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What `xargs -I{}` puts in is not known."""
    texts = [word.text for word in options]
    holes = [texts[at + 1] for at, text in enumerate(texts[:-1]) if text == "-I"]
    holes += [text[2:] for text in texts if text.startswith("-I") and len(text) > 2]
    holes += [text.partition("=")[2] for text in texts if text.startswith("--replace=")]
    return tuple(_holed(word, holes) for word in words)


def _holed(word: Word, holes: Sequence[str]) -> Word:
    return Word(word.text, Kind.DYNAMIC) if any(hole in word.text for hole in holes) else word


def _find(words: Words, _: Word | None) -> Iterator[Inner]:
    """`-exec command {} ;`, as often as it is there."""
    at = 1
    while at < len(words):
        if words[at].text not in EXECUTING:
            at += 1
            continue
        start = at + 1
        end = next((end for end in range(start, len(words)) if _ends_exec(words, end)), None)
        if end is None or end == start:
            yield _unclear("the command that is run for what is found has no end", words)
            return
        yield Command(tuple(_holed(word, ["{}"]) for word in words[start:end]), is_open=words[end].text == "+")
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
        yield _unclear("only the shell will know the script that is run", words)


def _watch(words: Words, _: Word | None) -> Iterator[Inner]:
    options = Options("bcCdegtpwxr", "nqs", "beep color differences errexit chgexit no-title precise", "interval")
    for inner in _behind(words, options):
        if isinstance(inner, Command):
            yield from _script(" ".join(word.text for word in inner.words), inner.words, words)
        else:
            yield inner


def _shell(words: Words, stdin: Word | None) -> Iterator[Inner]:
    """`bash -lc script`, or a shell that reads its script from where it is told to."""
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
                yield _unclear("an option of the shell is not known", words)
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
            yield _unclear("only the shell will know the script that is run", words)
    elif stdin is not None:
        yield from _script(stdin.text, [stdin], words)
    else:
        yield _unclear("a shell reads what it runs from elsewhere", words)


def _source(words: Words, _: Word | None) -> Iterator[Inner]:
    if len(words) > 1 and (not words[1].is_static or words[1].text.startswith("/dev/")):
        yield _unclear("only the shell will know the script that is run", words)


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
            yield _unclear("only the shell will know the script that is run", words)
            return
        if word.text.startswith("--command="):
            yield word.text.partition("=")[2]
            return
        if word.text == "--command" or (re.fullmatch(r"-[a-zA-Z]*c", word.text) and word.text != "--c"):
            yield from _script(words[at + 1].text, words[at + 1 : at + 2], words) if at + 1 < len(words) else ()
            return
    yield _unclear("a shell reads what it runs from elsewhere", words)


def _flock(words: Words, _: Word | None) -> Iterator[Inner]:
    options = Options(
        "snuxeoFv", "wE", "shared nonblock unlock exclusive close no-fork verbose", "timeout wait conflict-exit-code"
    )
    for inner in _behind(words, Options(options.flags, options.valued, options.long, options.long_valued, operands=1)):
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
