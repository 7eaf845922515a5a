r"""Needs of shell commands: the patterns that rules match, and the paths that a script touches.

A pattern is the command in one line, as its program gets it: words without quotes, one blank between them. So a rule on
`git push*` also matches `g"it" push`, `\git  push` and `'git' push`, and rules are written without quotes. A command
that can be seen in more than one way has more than one pattern, and all of them have to be allowed:

    /usr/bin/git push       also as `git push`
    git -C dir push         also as `git push`, for options before the subcommand
    PATH=x git log          also as `git log`, with the variable if it changes what runs
    sudo git push           also as `git push`, for each command inside another

What only the shell knows at run time is asked for whatever rules allow: a script that cannot be analyzed, `$CMD x`,
`eval "$X"`, and an unknown word among those that identify the command (`git $X`, but not `git log $X`). `cd` has no
pattern, nor have variables that change nothing.

Which words identify a command is from the table that OpenCode published (`git checkout main`: two words, `docker
compose up web`: three), so that an "always" rule is wide enough and no wider.

A `cd` may fail, be in a subshell or in a branch not taken. So what follows it runs in the new folder or in the old one,
and a relative path counts from each of them. Only what is behind `cd x &&` certainly runs in `x`.
"""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.core.rules import Need
from app.text.bash.script import Assignment, Kind, Redirect, Script, SimpleCommand, Unclear, Word, names
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
MAX_ARITY_KEY = max(map(len, ARITIES))

CD_COMMANDS = frozenset({"cd", "pushd", "popd"})
START = "."
MAX_FOLDERS = 8
DEVICES = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"})
HOME = "~"

SHELL = "shell"
DECLARATIONS = frozenset({"export", "declare", "typeset", "local", "readonly", "unset", "unsetenv"})
MAX_SHOWN_LENGTH = 4_096

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
"""Options before the subcommand that take the next word as their value."""


def changes_what_runs(name: str) -> bool:
    """Whether an environment variable changes which program runs, or what else it runs, as `PATH` does."""
    name = name.split("[", 1)[0]
    return name in _NAMES or name.startswith(_BEGINNINGS) or name.endswith(_ENDINGS)


def arity(words: Sequence[str]) -> int:
    """How many words identify this command; it may have fewer."""
    for length in range(min(MAX_ARITY_KEY, len(words)), 0, -1):
        found = ARITIES.get(tuple(words[:length]))
        if found is not None:
            return found
    return 1


@dataclass(slots=True)
class TouchedPaths:
    """Paths that a script changes to, reads and writes: relative to its start, absolute, or with `~/`."""

    folders: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)


def touched_paths(script: Script) -> TouchedPaths:
    found = TouchedPaths()
    _follow(script, [START], found)
    for paths in (found.folders, found.reads, found.writes):
        paths[:] = dict.fromkeys(paths)
    return found


def path_of(word: Word) -> str | None:
    """A word as a path; None if it is not known. A quoted tilde is an ordinary character."""
    if word.kind is not Kind.STATIC or not word.text:
        return None
    is_home = word.is_unquoted and (word.text == HOME or word.text.startswith(f"{HOME}/"))
    return f"./{word.text}" if word.text.startswith(HOME) and not is_home else word.text


def _follow(script: Script, start: list[str], found: TouchedPaths) -> list[str]:
    """Follow a script in order; returns the folders in which it may end."""
    here, later = list(start), list[tuple[int, list[str]]]()
    items: list[SimpleCommand | Redirect] = [*script.commands, *script.redirects]
    for item in sorted(items, key=lambda item: item.at):
        while later and item.at > later[-1][0]:
            here = _union(here, later.pop()[1])
        if isinstance(item, Redirect):
            _add_redirect(item, here, found)
            continue
        for inner in item.inner:
            here = _union(here, _follow(inner, here, found))
        before, here = here, _after_command(item, here, found)
        if here is not before:
            later.append((item.guards_until, before))
    while later:
        here = _union(here, later.pop()[1])
    if len(here) > MAX_FOLDERS:
        found.unclear.append(Unclear("it changes folders too often to know where it is", "cd"))
        return here[:MAX_FOLDERS]
    return here


def _union(some: list[str], others: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*some, *others]))


def _add_redirect(redirect: Redirect, here: Sequence[str], found: TouchedPaths) -> None:
    path = path_of(redirect.target)
    if path is None:
        if redirect.is_write:
            found.unclear.append(
                Unclear("only the shell knows the file that is written", f"> {redirect.target.one_line}")
            )
        return
    if path in DEVICES or path.startswith("/dev/fd/"):
        return
    if path.startswith(("/dev/tcp/", "/dev/udp/")):
        found.unclear.append(Unclear("the shell connects to the network", f"> {redirect.target.one_line}"))
        return
    (found.writes if redirect.is_write else found.reads).extend(_resolve(here, path))


def _after_command(command: SimpleCommand, here: list[str], found: TouchedPaths) -> list[str]:
    """The folders after a command; the same list if it does not change them."""
    if not command.words[0].is_static or command.words[0].text not in CD_COMMANDS:
        return here
    rest = [
        word for word in command.words[1:] if not (word.is_static and word.text in {"-L", "-P", "-e", "-@", "-n", "--"})
    ]
    name, target = command.words[0].text, rest[0] if rest else None
    if name == "popd" or (target is None and name == "pushd") or (target is not None and target.text == "-"):
        if len(here) == 1 and here[0] == START:
            found.unclear.append(Unclear("the previous folder is not known", command.one_line))
        return _union(here, [START, *found.folders])
    path = HOME if target is None else path_of(target)
    if path is None or path.startswith("+") or (command.is_repeated and ".." in path):
        found.unclear.append(Unclear("only the shell knows the folder it changes to", command.one_line))
        return here
    new = _resolve(here, path)
    found.folders.extend(new)
    if len(new) > MAX_FOLDERS:
        found.unclear.append(Unclear("it changes folders too often to know where it is", command.one_line))
        return new[:MAX_FOLDERS]
    return new


def _resolve(here: Sequence[str], path: str) -> list[str]:
    if path.startswith(("/", HOME)):
        return [path]
    return list(dict.fromkeys(path if folder == START else posixpath.join(folder, path) for folder in here))


@dataclass(frozen=True, slots=True)
class CommandNeeds:
    """What a script needs: of the permission `shell`, and paths that it changes to and redirects to.

    Paths are relative to where the script starts, absolute, or beginning with `~/`.
    """

    needs: tuple[Need, ...]
    folders: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def command_needs(script: Script | Unclear) -> CommandNeeds:
    if isinstance(script, Unclear):
        return CommandNeeds((_unclear_need(script),))
    paths = touched_paths(script)
    needs = dict[str, Need]()
    for need in [*_needs(script), *map(_unclear_need, paths.unclear)]:
        known = needs.get(need.pattern)
        if known is None or (need.is_unclear and not known.is_unclear):
            needs[need.pattern] = need
    return CommandNeeds(tuple(needs.values()), tuple(paths.folders), tuple(paths.writes), tuple(paths.reads))


def _needs(script: Script) -> Iterator[Need]:
    for part in script.with_inner():
        for command in part.commands:
            yield from _of_command(command)
        for assignment in part.assignments:
            if changes_what_runs(assignment.name):
                yield Need(SHELL, assignment.one_line)
        yield from map(_unclear_need, part.unclear)


def _unclear_need(unclear: Unclear) -> Need:
    text = Word(unclear.text[:MAX_SHOWN_LENGTH]).one_line.strip()
    return Need(SHELL, text or unclear.reason, is_unclear=True)


def _of_command(command: SimpleCommand) -> Iterator[Need]:
    name = command.name.text
    if not name:
        return
    changing = [assignment for assignment in command.assignments if changes_what_runs(assignment.name)]
    if command.name.is_static and name in CD_COMMANDS | DECLARATIONS and not changing:
        return
    for words in _forms(command.words):
        yield _need(words, command.has_unknown_words)
    if changing:
        yield _need(command.words, command.has_unknown_words, changing)


def _forms(words: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
    """The ways to see a command."""
    yield words
    name = basename(words[0].text)
    if words[0].is_static and name and name != words[0].text:
        words = (Word(name), *words[1:])
        yield words
    bare = _without_options(words)
    if bare != words:
        yield bare


def _without_options(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The command without options before its subcommand."""
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


def _need(words: tuple[Word, ...], has_unknown_words: bool, changing: Sequence[Assignment] = ()) -> Need:
    count = _identifying(words)
    before = [assignment.one_line for assignment in changing]
    pattern = " ".join([*before, *(word.one_line for word in words)]).strip()
    prefix = [*before, *(word.one_line for word in words[:count])]
    is_known = all(word.is_static for word in words[:count]) and all(part.value.is_static for part in changing)
    if not is_known or _is_wild(prefix) or (has_unknown_words and len(words) < count):
        return Need(SHELL, pattern, is_unclear=True)
    return Need(SHELL, pattern, " ".join([*prefix, "*"]))


def _identifying(words: tuple[Word, ...]) -> int:
    """How many words identify the command; for a shell with a script, those up to the script."""
    texts = [basename(words[0].text), *(word.text for word in words[1:])]
    if texts[0] in SHELLS:
        flag = next((at for at, text in enumerate(texts) if at and text.startswith("-") and "c" in text), None)
        return 1 if flag is None else flag + 1
    return arity(texts)


def _is_wild(words: Sequence[str]) -> bool:
    """Whether an "always" rule of these words would match more than them, because of wildcards."""
    return any(char in word for word in words for char in "*?\\")
