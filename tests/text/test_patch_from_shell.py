"""Patches that come as shell commands."""

import pytest

from app.text.patch.from_shell import Patch, intercepted_patch
from app.text.patch.lenient import read

PATCH = '*** Begin Patch\n*** Add File: a.txt\n+it\'s `a` $(b) \\ "c"\n*** End Patch'
PLAIN = "*** Begin Patch\n*** Add File: a.txt\n+a\n*** End Patch"


@pytest.mark.parametrize("name", ["apply_patch", "applypatch"])
@pytest.mark.parametrize(
    ("opened", "tag"), [("<<'EOF'", "EOF"), ('<<"PATCH"', "PATCH"), ("<< 'E_1'", "E_1"), ("<<\\X", "X")]
)
def test_a_document_is_the_patch(name: str, opened: str, tag: str) -> None:
    assert intercepted_patch(f"{name} {opened}\n{PATCH}\n{tag}\n") == Patch(f"{PATCH}\n")


@pytest.mark.parametrize(
    ("folder", "workdir"),
    [
        ("src", "src"),
        ("a/b", "a/b"),
        ("'a b'", "a b"),
        ('"a b"', "a b"),
        ("a\\ b", "a b"),
        ("/abs", "/abs"),
        ("..", ".."),
    ],
)
def test_it_may_be_applied_in_a_folder(folder: str, workdir: str) -> None:
    assert intercepted_patch(f"cd {folder} && apply_patch <<'EOF'\n{PATCH}\nEOF") == Patch(f"{PATCH}\n", workdir)


@pytest.mark.parametrize("shell", ["bash", "sh", "/bin/bash", "/usr/bin/zsh"])
@pytest.mark.parametrize("flag", ["-c", "-lc"])
def test_it_may_stand_behind_a_shell(shell: str, flag: str) -> None:
    script = f"cd x && apply_patch <<'EOF'\n{PATCH}\nEOF"

    assert intercepted_patch([shell, flag, script]) == Patch(f"{PATCH}\n", "x")
    assert intercepted_patch([shell, flag, "ls"]) is None


def test_a_script_may_call_the_shell_itself() -> None:
    assert intercepted_patch(f"bash -lc \"apply_patch <<'EOF'\n{PLAIN}\nEOF\"") == Patch(f"{PLAIN}\n")


def test_the_patch_may_be_the_one_argument() -> None:
    assert intercepted_patch(["apply_patch", PATCH]) == Patch(PATCH)
    assert intercepted_patch(["applypatch", PATCH]) == Patch(PATCH)
    assert intercepted_patch(f"apply_patch '{PLAIN}'") == Patch(PLAIN)
    assert intercepted_patch(f'apply_patch "{PLAIN}"') == Patch(PLAIN)


def test_a_tag_without_quotes_will_do_where_nothing_is_expanded() -> None:
    assert intercepted_patch(f"apply_patch <<EOF\n{PLAIN}\nEOF") == Patch(f"{PLAIN}\n")
    assert intercepted_patch(f"apply_patch <<EOF\n{PLAIN} $x\nEOF") is None
    assert intercepted_patch(f"apply_patch <<EOF\n{PLAIN} $(x)\nEOF") is None
    assert intercepted_patch(f"apply_patch <<EOF\n{PLAIN} \\\\\nEOF") is None


def test_a_long_patch_is_kept_to_the_letter() -> None:
    lines = "".join(f"+{number} 'x' `y` $(z)\n" for number in range(10_000))
    text = f"*** Begin Patch\n*** Add File: a.txt\n{lines}*** End Patch\n"

    assert intercepted_patch(f"apply_patch <<'EOF'\n{text}EOF\n") == Patch(text)


def test_what_is_found_is_a_patch_that_can_be_read() -> None:
    found = intercepted_patch(f"apply_patch <<'EOF'\n{PATCH}\nEOF")

    assert found is not None
    assert [operation.path for operation in read(found.text)] == ["a.txt"]


DOCUMENT = f"<<'EOF'\n{PATCH}\nEOF"


def test_anything_more_is_an_ordinary_command(subtests: pytest.Subtests) -> None:
    cases: list[str | list[str]] = [
        f"cd a; apply_patch {DOCUMENT}",
        f"cd a\napply_patch {DOCUMENT}",
        f"cd a || apply_patch {DOCUMENT}",
        f"cd a & apply_patch {DOCUMENT}",
        f"cd $A && apply_patch {DOCUMENT}",
        f"cd ~/a && apply_patch {DOCUMENT}",
        f"cd - && apply_patch {DOCUMENT}",
        f"cd a b && apply_patch {DOCUMENT}",
        f"cd && apply_patch {DOCUMENT}",
        f"cd a && cd b && apply_patch {DOCUMENT}",
        f"cd a > b && apply_patch {DOCUMENT}",
        f"A=b cd a && apply_patch {DOCUMENT}",
        f"ls && apply_patch {DOCUMENT}",
        f"A=b apply_patch {DOCUMENT}",
        f"apply_patch {DOCUMENT}\nls",
        f"apply_patch --dry {DOCUMENT}",
        f"apply_patch <<'EOF' && ls\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' | cat\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' > f\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' 2>/dev/null\n{PATCH}\nEOF",
        f"cat <<'EOF' | apply_patch\n{PATCH}\nEOF",
        f"(apply_patch {DOCUMENT}\n)",
        f"{{ apply_patch {DOCUMENT}\n}}",
        f"! apply_patch {DOCUMENT}",
        f"sudo apply_patch {DOCUMENT}",
        f"./apply_patch {DOCUMENT}",
        f"echo $(apply_patch {DOCUMENT}\n)",
        f"if apply_patch {DOCUMENT}\nthen ls; fi",
        f"f() {{ apply_patch {DOCUMENT}\n}}",
        f"apply_patch {DOCUMENT} &",
        f"apply_patch <<'EOF'\n{PATCH}",
        "apply_patch < patch.txt",
        "apply_patch",
        'apply_patch "$PATCH"',
        'apply_patch <<< "x"; ls',
        "apply_patch a b",
        "echo apply_patch",
        "ls",
        "",
        ["apply_patch"],
        ["apply_patch", PATCH, "x"],
        ["bash", "-lc", f"ls && apply_patch {DOCUMENT}"],
        ["bash", "-xc", f"apply_patch {DOCUMENT}"],
        ["python", "-c", f"apply_patch {DOCUMENT}"],
        [],
    ]
    for command in cases:
        with subtests.test(command=command):
            assert intercepted_patch(command) is None
