"""Needs."""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.core.rules import Need
from app.text.bash.parse import Assignment, Redirect, Script, Simple
from app.text.bash.script import Kind, Unclear, Word, names
from app.text.bash.wrappers import SHELLS, basename

_NAMES = names("""
    BASHOPTS BASH_ENV BASH_LOADABLES_PATH BROWSER CC CDPATH CLASSPATH CXX DISPLAY EDITOR ENV EXECIGNORE FPATH GCONV_PATH
    GLOBIGNORE GREP_OPTIONS HOME HOSTALIASES IFS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS KUBECONFIG LESSCLOSE LESSOPEN LESS
    LOCPATH MAKEFILES MAKEFLAGS NLSPATH OPENSSL_CONF PATH PERLLIB PROMPT_COMMAND PS0 PS1 PS4 RIPGREP_CONFIG_PATH
    RSYNC_RSH CVS_RSH SHELL SHELLOPTS TAR_OPTIONS TERMINFO TMPDIR VISUAL XDG_CONFIG_HOME _JAVA_OPTIONS
    """)


_BEGINNINGS = tuple(
    names("""
    BASH_FUNC_ CARGO_ COMP_ DOCKER_ DYLD_ GIT_ GO GUIX_ LD_ MAN NIX_ NODE_ NPM_CONFIG_ npm_config_ PERL5 PIP_ PYTHON
    READLINE_ RUBY RUST SSH_ SUDO_ SYSTEMD_ UV_ YARN_ ZDOTDIR
    """)
)


_ENDINGS = ("PAGER", "EDITOR", "_COMMAND", "_EXEC", "_HOOK", "_PRELOAD")

_ONE = (
    "cat cd chmod chown cp echo env export grep kill killall ln ls mkdir mv ps pwd rm rmdir sleep source tail touch "
    "unset which"
)
_TWO = (
    "bazel brew bun cargo cdk cf cmake composer consul crictl deno docker eksctl firebase flyctl git go gradle helm "
    "heroku hugo ip kind kubectl kustomize make mc minikube mongosh mvn mysql ng npm nvm nx openssl pip pipenv pnpm "
    "podman poetry psql pulumi pyenv python rake rbenv redis-cli rtk rustup serverless skaffold sls sst swift "
    "systemctl terraform tmux turbo ufw vault vercel volta wp yarn"
)
_THREE = "aws az doctl gcloud gh sfdx"
_THREE_AFTER = {
    "bun": "run x",
    "cargo": "add run",
    "consul": "kv",
    "deno": "task",
    "docker": "builder compose container image network volume",
    "eksctl": "create",
    "git": "config remote stash",
    "ip": "addr link netns route",
    "kind": "create",
    "kubectl": "kustomize rollout",
    "mc": "admin",
    "npm": "exec init run view",
    "openssl": "req x509",
    "pnpm": "dlx exec run",
    "podman": "container image",
    "pulumi": "stack",
    "rtk": "git",
    "terraform": "workspace",
    "vault": "auth kv",
    "yarn": "dlx run",
}

ARITIES: dict[tuple[str, ...], int] = {
    **{(name,): 1 for name in _ONE.split()},
    **{(name,): 2 for name in _TWO.split()},
    **{(name,): 3 for name in _THREE.split()},
    **{(name, second): 3 for name, seconds in _THREE_AFTER.items() for second in seconds.split()},
}
LONGEST = max(map(len, ARITIES))

CHANGING = frozenset({"cd", "pushd", "popd"})
START = "."
MOST_FOLDERS = 8
NOTHING = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"})
HOME = "~"

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


def changes_what_runs(name: str) -> bool:
    """Whether somebody who may run a command may still not run it with this variable set."""
    name = name.split("[", 1)[0]
    return name in _NAMES or name.startswith(_BEGINNINGS) or name.endswith(_ENDINGS)


def arity(words: Sequence[str]) -> int:
    """How many words it takes to tell this command; it may have fewer."""
    for length in range(min(LONGEST, len(words)), 0, -1):
        found = ARITIES.get(tuple(words[:length]))
        if found is not None:
            return found
    return 1


def prefix(words: Sequence[str]) -> list[str]:
    """The words that tell this command."""
    return list(words[: arity(words)])


def always(words: Sequence[str]) -> str:
    """The pattern that an "always" allows: all commands that are told by the same words."""
    return " ".join([*prefix(words), "*"])


@dataclass(slots=True)
class Touched:
    """Paths that a script changes to, reads from and writes to: from where it starts, absolute, or beginning `~/`."""

    folders: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)


def touched(script: Script) -> Touched:
    found = Touched()
    _follow(script, [START], found)
    for paths in (found.folders, found.reads, found.writes):
        paths[:] = dict.fromkeys(paths)
    return found


def path_of(word: Word) -> str | None:
    """A word as a path; None when nobody knows it. A tilde that was quoted is a name like others."""
    if word.kind is not Kind.STATIC or not word.text:
        return None
    is_home = word.is_bare and (word.text == HOME or word.text.startswith(f"{HOME}/"))
    return f"./{word.text}" if word.text.startswith(HOME) and not is_home else word.text


def _follow(script: Script, start: list[str], found: Touched) -> list[str]:
    """Goes through a script in its order; answers with where it may end."""
    here, later = list(start), list[tuple[int, list[str]]]()
    items: list[Simple | Redirect] = [*script.commands, *script.redirects]
    for item in sorted(items, key=lambda item: item.at):
        while later and item.at > later[-1][0]:
            here = _either(here, later.pop()[1])
        if isinstance(item, Redirect):
            _redirect(item, here, found)
            continue
        for inner in item.inner:
            here = _either(here, _follow(inner, here, found))
        before, here = here, _changed(item, here, found)
        if here is not before:
            later.append((item.sure_until, before))
    while later:
        here = _either(here, later.pop()[1])
    if len(here) > MOST_FOLDERS:
        found.unclear.append(Unclear("it changes folders too often to say where it is", "cd"))
        return here[:MOST_FOLDERS]
    return here


def _either(some: list[str], others: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*some, *others]))


def _redirect(redirect: Redirect, here: Sequence[str], found: Touched) -> None:
    path = path_of(redirect.target)
    if path is None:
        if redirect.is_write:
            found.unclear.append(
                Unclear("only the shell will know the file that is written", f"> {redirect.target.plain}")
            )
        return
    if path in NOTHING or path.startswith("/dev/fd/"):
        return
    if path.startswith(("/dev/tcp/", "/dev/udp/")):
        found.unclear.append(Unclear("the shell connects to the network", f"> {redirect.target.plain}"))
        return
    (found.writes if redirect.is_write else found.reads).extend(_from(here, path))


def _changed(command: Simple, here: list[str], found: Touched) -> list[str]:
    """Where a command leads; the same list when it leads nowhere else."""
    if not command.words[0].is_static or command.words[0].text not in CHANGING:
        return here
    rest = [
        word for word in command.words[1:] if not (word.is_static and word.text in {"-L", "-P", "-e", "-@", "-n", "--"})
    ]
    name, target = command.words[0].text, rest[0] if rest else None
    if name == "popd" or (target is None and name == "pushd") or (target is not None and target.text == "-"):
        if len(here) == 1 and here[0] == START:
            found.unclear.append(Unclear("nobody knows which folder was there before", command.plain))
        return _either(here, [START, *found.folders])
    path = HOME if target is None else path_of(target)
    if path is None or path.startswith("+") or (command.is_repeated and ".." in path):
        found.unclear.append(Unclear("only the shell will know the folder it changes to", command.plain))
        return here
    new = _from(here, path)
    found.folders.extend(new)
    if len(new) > MOST_FOLDERS:
        found.unclear.append(Unclear("it changes folders too often to say where it is", command.plain))
        return new[:MOST_FOLDERS]
    return new


def _from(here: Sequence[str], path: str) -> list[str]:
    if path.startswith(("/", HOME)):
        return [path]
    return list(dict.fromkeys(path if folder == START else posixpath.join(folder, path) for folder in here))


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
