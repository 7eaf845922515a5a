r"""Needs of shell commands: the patterns that rules are about.

A pattern is the command in one line, as its program gets it: words without quotes, one blank between them. So a rule on
`git push*` is about `g"it" push`, `\git  push` and `'git' push` as well, and rules are written without quotes. Where a
command can be looked at in more than one way, it has more than one pattern, and all of them have to be allowed:

    /usr/bin/git push       also as `git push`
    git -C dir push         also as `git push`, where options stand before what is to be done
    PATH=x git log          also as `git log`, with the variable where it changes what runs
    sudo git push           also as `git push`, for each command inside another

What only the shell will know is asked whatever rules allow: a script that cannot be read, `$CMD x`, `eval "$X"`, and a
word that is not known among those which tell the command (`git $X`, though not `git log $X`). `cd` has no pattern, nor
have variables that change nothing.

Variables of the environment that change which program runs, or what else a program runs.

`CI=1 npm test` is `npm test`; `PATH=/tmp/x npm test` is not, whatever rules say of `npm test`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.core.rules import Need
from app.text.bash.command_arity import arity
from app.text.bash.env_variables import changes_what_runs
from app.text.bash.parse import Assignment, Script, Simple
from app.text.bash.unclear import Unclear
from app.text.bash.words import Word
from app.text.bash.working_dirs import CHANGING, touched
from app.text.bash.wrappers import SHELLS, basename

SHELL = "shell"
DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly", "unset", "unsetenv"})
LONGEST_SHOWN = 4_096

VALUED: dict[tuple[str, ...], str] = {
    ("apt",): "-o -c -t",
    ("apt-get",): "-o -c -t",
    ("aws",): "--profile --region --output --endpoint-url --query --color --ca-bundle",
    ("az",): "--subscription --output -o --query",
    ("cargo",): "-C -Z --config --color",
    ("docker",): "-H --host -c --context --config -l --log-level --tlscacert --tlscert --tlskey",
    ("docker", "compose"): "-f --file -p --project-name --env-file --profile --project-directory --ansi --progress",
    ("gcloud",): "--project --account --configuration --format --verbosity",
    ("gh",): "-R --repo",
    ("git",): "-C -c --git-dir --work-tree --namespace --config-env --super-prefix --attr-source",
    ("go",): "-C",
    ("helm",): "-n --namespace --kube-context --kubeconfig",
    ("kubectl",): "-n --namespace --context --kubeconfig --cluster --user -s --server --token --as --as-group",
    ("npm",): "-C --prefix -w --workspace --registry --userconfig",
    ("pip",): "--proxy --cache-dir --log --python",
    ("pnpm",): "-C --dir -F --filter",
    ("podman",): "-c --connection --url --root --log-level",
    ("poetry",): "-C --directory -P --project",
    ("systemctl",): "-H --host -M --machine -t --type -p --property -n -o --root",
    ("terraform",): "",
    ("uv",): "--directory --project --config-file --cache-dir --color",
    ("yarn",): "--cwd",
}
"""Options that stand before what is to be done and take the next word as their value."""


@dataclass(frozen=True, slots=True)
class CommandNeeds:
    """All that a script wants: needs of the permission `shell`, and paths for whoever knows the workspace.

    `folders` are changed to, `writes` and `reads` are files that it is redirected to; from where the script starts,
    absolute, or beginning `~/`.
    """

    needs: tuple[Need, ...]
    folders: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def wanted(script: Script | Unclear) -> CommandNeeds:
    """What a script that was read wants."""
    if isinstance(script, Unclear):
        return CommandNeeds((_asked(script),))
    paths = touched(script)
    needs = dict[str, Need]()
    for need in [*_needs(script), *map(_asked, paths.unclear)]:
        known = needs.get(need.pattern)
        if known is None or (need.is_unclear and not known.is_unclear):
            needs[need.pattern] = need
    return CommandNeeds(tuple(needs.values()), tuple(paths.folders), tuple(paths.writes), tuple(paths.reads))


def _needs(script: Script) -> Iterator[Need]:
    for part in script.every():
        for command in part.commands:
            yield from _of_command(command)
        for assignment in part.assignments:
            if changes_what_runs(assignment.name):
                yield Need(SHELL, assignment.plain)
        yield from map(_asked, part.unclear)


def _asked(unclear: Unclear) -> Need:
    text = Word(unclear.text[:LONGEST_SHOWN]).plain.strip()
    return Need(SHELL, text or unclear.reason, is_unclear=True)


def _of_command(command: Simple) -> Iterator[Need]:
    name = command.name.text
    if not name:
        return
    telling = [assignment for assignment in command.assignments if changes_what_runs(assignment.name)]
    if command.name.is_static and name in CHANGING | DECLARING and not telling:
        return
    for words in _forms(command.words):
        yield _need(words, command.is_open)
    if telling:
        yield _need(command.words, command.is_open, telling)


def _forms(words: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
    """The ways to look at a command."""
    yield words
    name = basename(words[0].text)
    if words[0].is_static and name and name != words[0].text:
        words = (Word(name), *words[1:])
        yield words
    bare = _without_options(words)
    if bare != words:
        yield bare


def _without_options(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The command without what stands before the words that tell what is to be done."""
    for length in (1, 2):
        valued = VALUED.get(tuple(word.text for word in words[:length]))
        if valued is None:
            continue
        at = length
        while at < len(words) and words[at].text.startswith(("-", "+")):
            at += 2 if words[at].text in valued.split() else 1
        if at < len(words):
            words = words[:length] + words[at:]
    return words


def _need(words: tuple[Word, ...], is_open: bool, telling: Sequence[Assignment] = ()) -> Need:
    count = _telling(words)
    before = [assignment.plain for assignment in telling]
    pattern = " ".join([*before, *(word.plain for word in words)]).strip()
    prefix = [*before, *(word.plain for word in words[:count])]
    is_known = all(word.is_static for word in words[:count]) and all(part.value.is_static for part in telling)
    if not is_known or _is_wild(prefix) or (is_open and len(words) < count):
        return Need(SHELL, pattern, is_unclear=True)
    return Need(SHELL, pattern, " ".join([*prefix, "*"]))


def _telling(words: tuple[Word, ...]) -> int:
    """How many words tell the command: by its name without folders, and for a shell with its script up to that."""
    texts = [basename(words[0].text), *(word.text for word in words[1:])]
    if texts[0] in SHELLS:
        flag = next((at for at, text in enumerate(texts) if at and text.startswith("-") and "c" in text), None)
        return 1 if flag is None else flag + 1
    return arity(texts)


def _is_wild(words: Sequence[str]) -> bool:
    """Whether an "always" of these words would allow more than them: a rule takes these characters for any."""
    return any(char in word for word in words for char in "*?\\")
