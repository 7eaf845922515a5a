"""Known-safe commands: those that only read, whatever is in the folder they run in.

The list is short on purpose: other commands are only not run in parallel. Names with folders are not in it, since
`./ls` may be anything, nor is anything that runs another command except a shell with its script.
"""

import re
from collections.abc import Callable, Sequence

from app.text.bash.needs import DEVICES, path_of
from app.text.bash.script import Kind, Redirect, Script, SimpleCommand, Unclear, Word, names

ALWAYS_SAFE = names("""
    : arch b2sum base32 base64 basename cat cksum cmp column comm cut df dirname du echo egrep exit expand expr false
    fgrep fmt fold free getconf grep groups head hexdump id join jq locale logname ls lsblk lscpu md5sum nl nproc numfmt
    od
    paste pgrep printenv ps pwd readlink realpath rev seq sha1sum sha224sum sha256sum sha384sum sha512sum sleep stat
    strings sum tac tr true tsort tty type uname unexpand uptime users wc whereis which who whoami
    """)
"""Commands that only read, whatever their arguments are."""

DENIED: dict[str, tuple[str, str]] = {
    "diff": ("l", "paginate"),
    "file": ("CzZ", "compile uncompress uncompress-noreport"),
    "printf": ("v", ""),
    "rg": ("z", "pre pre-glob hostname-bin search-zip"),
    "shuf": ("o", "output"),
    "sort": ("oT", "output temporary-directory compress-program"),
    "tail": ("fF", "follow retry"),
    "test": ("v", ""),
    "tree": ("oR", ""),
}
"""Commands that only read without these options: short ones, and long ones in any abbreviation."""

SHELLS = names("bash sh /bin/bash /bin/sh /usr/bin/bash /usr/bin/sh")
"""Shells, which are as safe as their script."""

VERSIONED = names(
    "bash bun cargo clang cmake deno docker gcc git go java make node npm npx perl php pip pip3 pnpm python python3 "
    "ruby rustc tsc uv yarn"
)
"""Commands that are safe with only `--version` or `-V`."""

GIT_READING = names("""
    blame cat-file check-ignore count-objects describe diff diff-index diff-tree for-each-ref grep log ls-files ls-tree
    merge-base name-rev rev-list rev-parse shortlog show show-ref status version
    """)
GIT_DENIED = ("O", "output ext-diff textconv filters open-files-in-pager upload-pack exec paginate stdin-paths")
GIT_BEFORE = frozenset({"--no-pager", "-P", "--no-optional-locks"})
GIT_LISTING: dict[tuple[str, ...], frozenset[str]] = {
    ("branch",): names("-a -r -v -vv -av -avv -rv --all --remotes --verbose --list -l --show-current --no-color"),
    ("tag",): frozenset({"-l", "--list", "-n"}),
    ("remote",): frozenset({"-v", "--verbose"}),
    ("stash", "list"): frozenset(),
    ("stash", "show"): frozenset({"-p", "--stat", "--patch"}),
    ("worktree", "list"): frozenset({"--porcelain", "-v"}),
    ("reflog",): frozenset({"show"}),
    ("config",): frozenset({"--list", "-l", "--show-origin", "--show-scope", "--global", "--local"}),
}
"""Subcommands that only list, if no other words follow."""

FIND_DENIED = ("-exec", "-ok", "-delete", "-fprint", "-fls")
HARMLESS = frozenset(
    {"LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "NO_COLOR", "TZ", "COLUMNS"}
)

_PRINTED = re.compile(r"(?:\d+|\$)(?:,(?:\d+|\$|\+\d+))?p(?:;(?:\d+|\$)(?:,(?:\d+|\$|\+\d+))?p)*")
_OPTION_VALUE = frozenset({"-d", "--date", "-r", "--reference"})


def is_safe(script: Script | Unclear) -> bool:
    """Whether a script certainly only reads."""
    if isinstance(script, Unclear) or not script.commands:
        return False
    if script.unclear or script.assignments or script.functions or script.is_background:
        return False
    return all(map(is_safe_command, script.commands)) and all(map(_is_safe_redirect, script.redirects))


def _is_safe_redirect(redirect: Redirect) -> bool:
    """Reading a known file, or discarding output. A device may be the network (`/dev/tcp/…`)."""
    path = path_of(redirect.target)
    if path in DEVICES:
        return True
    return not redirect.is_write and path is not None and not path.startswith("/dev/")


def is_safe_command(command: SimpleCommand) -> bool:
    """Whether one command only reads."""
    name, *rest = command.words
    if command.has_unknown_words or not name.is_static:
        return False
    if not all(part.name in HARMLESS and part.value.is_static for part in command.assignments):
        return False
    if command.inner:
        return _is_shell(command) and all(map(is_safe, command.inner))
    if name.text in ALWAYS_SAFE:
        return True
    return all(map(_is_certain, rest)) and _is_safe_with(name.text, [word.text for word in rest])


def _is_shell(command: SimpleCommand) -> bool:
    """`bash -lc script`, from clients that send an argv."""
    return len(command.words) == 3 and command.words[0].text in SHELLS and command.words[1].text in {"-c", "-lc"}


def _is_certain(word: Word) -> bool:
    """Whether a word cannot become an option. The names that a glob matches may begin with a dash."""
    return word.is_static or (word.kind is Kind.GLOB and word.text[0] not in "*?[-")


def _is_safe_with(name: str, words: Sequence[str]) -> bool:
    if check := _CHECKS.get(name):
        return check(words)
    if name in DENIED and not _has_option(words, *DENIED[name]):
        return True
    return name in VERSIONED and list(words) in (["--version"], ["-V"])


def _has_option(words: Sequence[str], flags: str, names: str) -> bool:
    """Whether one of these options is present, or something that may be taken for it."""
    for word in words:
        if word == "--":
            return False
        if word.startswith("--"):
            written = word[2:].partition("=")[0]
            if any(name.startswith(written) for name in names.split()):
                return True
        elif word.startswith("-") and any(flag in word for flag in flags):
            return True
    return False


def _git(words: Sequence[str]) -> bool:
    while words and words[0] in GIT_BEFORE:
        words = words[1:]
    if not words:
        return False
    if words[0] in GIT_READING:
        return not _has_option(words[1:], *GIT_DENIED)
    if words[0] == "--version":
        return len(words) == 1
    if words[0] == "config" and len(words) == 3 and words[1] in {"--get", "--get-all"}:
        return not words[2].startswith("-")
    return any(
        tuple(words[: len(start)]) == start and all(word in allowed for word in words[len(start) :])
        for start, allowed in GIT_LISTING.items()
    )


def _find(words: Sequence[str]) -> bool:
    return not any(word.startswith(FIND_DENIED) for word in words)


def _sed(words: Sequence[str]) -> bool:
    """`sed -n 10,20p file`; other scripts can write files and run commands."""
    if len(words) < 2 or words[0] not in {"-n", "--quiet", "--silent"} or _PRINTED.fullmatch(words[1]) is None:
        return False
    return not any(word.startswith("-") for word in words[2:])


def _uniq(words: Sequence[str]) -> bool:
    """A second operand is the file that is written."""
    return sum(not word.startswith("-") for word in words) <= 1 and "--" not in words


def _date(words: Sequence[str]) -> bool:
    before = ["", *words]
    operands = [word for at, word in enumerate(words) if word[:1] not in {"-", "+"} and before[at] not in _OPTION_VALUE]
    return not operands and not _has_option(words, "s", "set")


def _set(words: Sequence[str]) -> bool:
    return list(words) in (["-e"], ["-u"], ["-eu"], ["-x"], ["-ex"], ["-euo", "pipefail"], ["-o", "pipefail"])


def _command(words: Sequence[str]) -> bool:
    return len(words) > 1 and words[0] in {"-v", "-V"}


def _cd(words: Sequence[str]) -> bool:
    return len(words) == 1 and not words[0].startswith("-")


_CHECKS: dict[str, Callable[[Sequence[str]], bool]] = {
    "cd": _cd,
    "command": _command,
    "date": _date,
    "env": lambda words: not words,
    "find": _find,
    "git": _git,
    "hostname": lambda words: not words,
    "sed": _sed,
    "set": _set,
    "uniq": _uniq,
    "xxd": lambda words: len(words) == 1 and not words[0].startswith("-"),
}
