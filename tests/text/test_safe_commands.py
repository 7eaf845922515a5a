"""Known-safe commands: what only reads is known, and nothing else is taken for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.bash.parse import parse, parse_argv
from app.text.bash.safe_commands import is_safe

SAFE = [
    "ls",
    "ls -la src/*.py",
    "cat README.md | head -20",
    'cat "$F"',
    "cat <<'EOF'\nx\nEOF",
    "wc -l *.py && du -sh .",
    "grep -rn 'a b' src || true",
    "rg --hidden -n foo src",
    "rg foo | sort -u | uniq -c | sort -rn | head",
    "find . -name '*.py' -type f",
    "find src -maxdepth 2 -newer x -print0",
    "sed -n 10,20p app/main.py",
    "sed -n '1p;5,$p' a b",
    "tail -n 5 log",
    "git status",
    "git --no-pager log --oneline -5",
    "git diff HEAD~1 -- src/a.py",
    "git show --stat HEAD",
    "git branch -a",
    "git branch --show-current",
    "git remote -v",
    "git stash list",
    "git config --get user.name",
    "git rev-parse --show-toplevel",
    "git ls-files src",
    "git blame -L 1,5 a.py",
    "git grep -n foo",
    "echo hello; pwd; date +%s",
    "date -d yesterday +%F",
    "which python && python --version",
    "command -v git",
    "test -f x && echo yes",
    "[ -f x ] && echo yes",
    "[[ -n $HOME ]] && echo yes",
    'for f in *.py; do wc -l "$f"; done',
    "if [ -f a ]; then cat a; else echo none; fi",
    "echo $(cat a | wc -l)",
    "cat a 2>/dev/null",
    "ls > /dev/null 2>&1",
    "wc -l < a.txt",
    "LC_ALL=C sort a.txt",
    "cd src && ls",
    "set -euo pipefail\nls",
    "diff a b",
    "jq .name package.json",
    "stat a && file a && md5sum a",
    "ps aux | grep python",
    "env",
    "tree -L 2",
    "printf '%s\\n' a b",
    "uniq a",
    "bash -lc 'git status && ls'",
    "/bin/sh -c ls",
    "true",
]

DANGEROUS = [
    "rm x",
    "rm -rf /",
    "mv a b",
    "cp a b",
    "touch x",
    "mkdir x",
    "chmod 777 x",
    "dd if=a of=b",
    "tee x",
    "ln -s a b",
    "truncate -s 0 x",
    "find . -delete",
    "find . -exec rm {} ;",
    "find . -exec rm {} \\;",
    "find . -execdir ls {} +",
    "find . -ok ls {} \\;",
    "find . -fprint x",
    "find . -fprintf x %p",
    "find . -fls x",
    "find . $X",
    "find *",
    "sort -o x a",
    "sort -ox a",
    "sort -uo x a",
    "sort --output=x a",
    "sort --outp x a",
    "sort --compress-program=x a",
    "sort $X",
    "sort *",
    "uniq a b",
    "sed -i s/a/b/ x",
    "sed s/a/b/w x",
    "sed -n 1p -i x",
    "sed -n 'w x' a",
    "sed -n '1e rm x' a",
    "awk 'BEGIN{system(\"rm x\")}'",
    "tail -f log",
    "tail --follow log",
    "rg --pre rm foo",
    "rg --pre=rm foo",
    "rg -z foo",
    "rg $X",
    "git push",
    "git commit -m x",
    "git checkout x",
    "git branch x",
    "git branch -D x",
    "git tag x",
    "git remote add x y",
    "git stash",
    "git stash pop",
    "git config user.name x",
    "git -c core.pager=x log",
    "git -c alias.x=!rm x",
    "git -C x status",
    "git --git-dir=x status",
    "git --exec-path=x status",
    "git diff --output=x",
    "git diff --outp=x",
    "git diff --ext-diff",
    "git log --textconv",
    "git grep -Ovim foo",
    "git grep --open-files-in-pager foo",
    "git $X",
    "git log $X",
    "git fetch",
    "git reflog expire --all",
    "env rm x",
    "env A=b ls",
    "sudo ls",
    "xargs ls",
    "bash -c 'rm x'",
    "bash -lc 'ls > x'",
    "bash -xc ls",
    "bash -c ls x",
    'bash -c "$X"',
    "./bash -c ls",
    "A=b bash -c ls",
    "bash <<< ls",
    "zsh -c ls",
    "sh x.sh",
    "eval ls",
    "exec ls",
    "nohup ls",
    "time ls",
    "timeout 5 ls",
    "./ls",
    "/tmp/ls",
    "bin/ls",
    "$X",
    "l?",
    "l$X",
    "python x.py",
    "python --version x",
    "npm test",
    "make",
    "curl x",
    "date -s 12:00",
    "date 01020304",
    "hostname x",
    "file -C -m x",
    "tree -o x",
    "shuf -o x a",
    "printf -v x a",
    "xxd -r a b",
    "diff -l a b",
    "set -o allexport",
    "cd",
    "cd -",
    "cd $X",
    "export A=b",
    "A=b",
    "unset A",
    "alias ls=rm",
    "trap ls EXIT",
    "source x",
    ". x",
    "read x",
    "kill 1",
    "reboot",
]

AROUND = [
    "ls; {}",
    "ls && {}",
    "ls | {}",
    "{} | cat",
    "echo $({})",
    "echo `{}`",
    'echo "$({})"',
    "cat <({})",
    "( {} )",
    "{{ {}\n}}",
    "if {}\nthen ls; fi",
    "for x in a; do {}\ndone",
    "f() {{ {}\n}}\nls",
    "case a in a) {};; esac",
    "! {}",
    "cat <<E\n$({})\nE",
]

CHANGING = [
    "ls > x",
    "ls >> x",
    "ls >| x",
    "ls &> x",
    "ls 2> x",
    "ls >& x",
    "> x",
    "cat a > /etc/passwd",
    'ls > "$X"',
    "ls < /dev/tcp/evil/80",
    "ls < $X",
    "{ ls; } > x",
    "ls &",
    "ls & ls",
    "PATH=. ls",
    "LD_PRELOAD=./x ls",
    "GIT_PAGER=rm git log",
    "PAGER=rm git log",
    "GIT_EXTERNAL_DIFF=rm git diff",
    "A=b ls",
    "LC_ALL=$(x) ls",
    "ls() { cat; }; ls",
    "if",
    "ls\r\n",
    "ls $(",
    "",
    "# nothing",
    "x=1",
]


def test_what_only_reads_is_safe(subtests: pytest.Subtests) -> None:
    for script in SAFE:
        with subtests.test(script=script):
            assert is_safe(parse(script))


def test_what_does_more_is_not(subtests: pytest.Subtests) -> None:
    for script in DANGEROUS:
        with subtests.test(script=script):
            assert not is_safe(parse(script))


def test_what_is_around_a_command_counts(subtests: pytest.Subtests) -> None:
    for script in CHANGING:
        with subtests.test(script=script):
            assert not is_safe(parse(script))


def test_one_dangerous_command_makes_the_script_so_wherever_it_stands(subtests: pytest.Subtests) -> None:
    for around in AROUND:
        with subtests.test(around=around):
            assert [inner for inner in DANGEROUS if is_safe(parse(around.format(inner)))] == []


def test_an_argv_is_judged_as_well() -> None:
    assert is_safe(parse_argv(["ls", "-la", "; rm x", "> f"]))
    assert not is_safe(parse_argv(["rm", "x"]))
    assert is_safe(parse_argv(["bash", "-lc", "ls | head -3"]))
    assert not is_safe(parse_argv(["bash", "-lc", "ls > f"]))
    assert not is_safe(parse_argv(["bash", "-lc", "rm x"]))
    assert not is_safe(parse_argv(["bash", "-lc"]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*SAFE, *DANGEROUS, *CHANGING]), min_size=1, max_size=4),
    st.sampled_from(["; ", "\n", " && ", " || ", " | "]),
)
def test_scripts_of_several_are_safe_only_if_each_is(parts: list[str], joint: str) -> None:
    if is_safe(parse(joint.join(parts))):
        assert set(parts) <= {*SAFE, "", "# nothing"}
