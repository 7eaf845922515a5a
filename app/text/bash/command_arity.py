"""Arities: how many words of a command name what it does, so that an "always" is wide enough and no wider.

`git checkout main` is told by two words, `docker compose up web` by three; the longest entry that the command begins
with counts. Flags are words like others: `git -C dir status` is told by `git -C`. The table is the one that OpenCode
published, so that rules mean the same there and here; what is not in it is told by its first word.
"""

from collections.abc import Sequence

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
