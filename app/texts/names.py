"""Lists of names, written down so that they can be read: with blank space between them and nothing else."""


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())
