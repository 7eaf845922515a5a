"""Scripts made from a small grammar, and what the shell itself runs of them: the reference that readings are held to.

The programs `aa`, `bb`, `cc` and `dd` only write down how they were called. No script here can name a folder, so that
all it writes stays where it runs.
"""

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("aa", "bb", "cc", "dd")
ODD = ("a''a", "\\bb", "'cc'", '"dd"', 'b"b"', "$'aa'", "eval", "command", "time", "echo", "builtin", "test", "true")
WORDS = (
    "x1",
    "-n",
    "foo",
    "--k=v",
    "a.b",
    "1",
    "+x",
    "E",
    "=",
    "%s",
    "in",
    "do",
    "[",
    "]",
    "!",
    "{",
    "}",
    "a,b",
    "a=b",
)
SINGLE = ("a b", "$(aa)", "`bb`", "#", '"', "\\", "a\nb", ";cc", "", "E", "*")
DOUBLE = ("a b", "$x", "${x}", 'a\\"b', "'", "#", ";", "\\\\", "\\$x", "$", "a\nb", "", "${x:-y}", " ")
EXPANDED = (
    "$x",
    "${x}",
    "$$",
    "${#x}",
    "${x%%*}",
    "$((1+2))",
    "${x:-a b}",
    "$'a\\nb'",
    "$'\\''",
    "*",
    "{aa,bb}",
    "~",
    "$@",
)
TARGETS = ("f", "g", '"f g"', "'h'")
GAPS = (" ", " ", " ", " ", "  ", "\t", " \\\n", "\\\n ")
JOINTS = ("; ", " && ", "&&", " || ", "|", " | ", "|&", "\n", " & ", "\n\n", " # c\n", " && \\\n", " |\n")


@dataclass(frozen=True)
class Maker:
    """Makes scripts; the same ones for the same seed."""

    dice: random.Random

    def script(self, depth: int) -> str:
        text = self.command(depth)
        while self.dice.random() < 0.3:
            text += self.dice.choice(JOINTS) + self.command(depth)
        return text

    def command(self, depth: int) -> str:
        if depth <= 0 or self.dice.random() < 0.6:
            return self.simple(depth)
        form = self.dice.choice(
            (
                "({0})",
                "{{ {0}; }}",
                "if {0}; then {1}; fi",
                "if {0}\nthen\n{1}\nelse {2}\nfi",
                "for i in {w} b; do {0}; done",
                "while {0}; do {1}; break; done",
                "case {w} in a|*) {0};; esac",
                "f() {{ {0}; }}; f",
                "function g {{ {0}\n}}\ng",
                "[[ {w} == {w} ]]",
                "[ {w} = b ]",
                "! {s}",
                "bash -c '{q}'",
                "eval '{q}'",
                "for ((i=0;i<1;i++)); do {0}; done",
            )
        )
        inner = [self.script(depth - 1) for _ in range(3)]
        quoted = self.simple(0).replace("'", "")
        return form.format(*inner, w=self.word(depth - 1), s=self.simple(depth - 1), q=quoted)

    def simple(self, depth: int) -> str:
        parts = [self.dice.choice(("x=1", "y='a b'", "z=", "x+=2"))] if self.dice.random() < 0.1 else []
        parts.append(self.dice.choice(PROGRAMS if self.dice.random() < 0.85 else ODD))
        while self.dice.random() < 0.55:
            parts.append(self.word(depth) if self.dice.random() < 0.85 else self.redirect())
        text = self.dice.choice(GAPS).join(parts)
        return self.documented(text) if self.dice.random() < 0.07 else text

    def documented(self, text: str) -> str:
        tag = self.dice.choice(("E", "'E'", '"E"', "\\E"))
        body = self.dice.choice(
            ("x\n", "", "$x\n", "$(aa)\n", "a $(bb 1) b\n", "'\n", "Ex\n", " E\n", "`cc`\n", "\n$(dd)\n")
        )
        tail = self.dice.choice(("", "", "", " | aa", " && bb", " > f", " x"))
        return f"{text} <<{tag}{tail}\n{body}E\n"

    def redirect(self) -> str:
        sign = self.dice.choice((">", ">>", "2>", "&>", ">|", "<<<", "2>&1", ">&2", "<&-"))
        return sign if sign in {"2>&1", ">&2", "<&-"} else f"{sign} {self.dice.choice(TARGETS)}"

    def word(self, depth: int) -> str:
        roll = self.dice.random()
        if roll < 0.35:
            return self.dice.choice(WORDS)
        if roll < 0.45:
            return f"'{self.dice.choice(SINGLE)}'"
        if roll < 0.6:
            return f'"{self.dice.choice(DOUBLE)}{self.substitution(depth)}"'
        if roll < 0.66:
            return "\\" + self.dice.choice(" \"'$a\\#;|&`(<")
        if roll < 0.74:
            return self.substitution(depth) or "y"
        if roll < 0.8:
            return self.dice.choice(EXPANDED)
        return self.word(depth) + self.word(depth) if roll < 0.9 else self.dice.choice(PROGRAMS)

    def substitution(self, depth: int) -> str:
        if depth <= 0 or self.dice.random() < 0.4:
            return ""
        form = self.dice.choice(("$({0})", "$( {0} )", "$(\n{0}\n)", "`aa 'b c'`", "<({0})", "$((1+$({1})))"))
        return form.format(self.script(depth - 1), self.simple(0))


def make(seed: int) -> str:
    dice = random.Random(seed)
    return Maker(dice).script(dice.choice((0, 1, 1, 2, 2)))


@dataclass(frozen=True)
class Reference:
    """A folder with the four programs, in which scripts really run."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> "Reference":
        for part in ("bin", "log", "work"):
            (folder / part).mkdir()
        for name in PROGRAMS:
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nprintf "%s\\0" "${{0##*/}}" "$@" > "{folder}/log/$$"\necho zz\n')
            program.chmod(0o755)
        os.symlink("/bin/bash", folder / "bin" / "bash")
        return cls(folder)

    def run(self, script: str) -> tuple[list[list[str]], set[str]]:
        """How the programs were called, and which files were written."""
        for part in ("log", "work"):
            for file in (self.folder / part).iterdir():
                file.unlink()
        subprocess.run(
            ["/bin/bash", "-c", f"{script}\nwait"],
            cwd=self.folder / "work",
            env={"PATH": str(self.folder / "bin"), "x": "vv", "HOME": "/nowhere", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        calls = [file.read_bytes().decode().split("\0")[:-1] for file in (self.folder / "log").iterdir()]
        return calls, {file.name for file in (self.folder / "work").iterdir()}
