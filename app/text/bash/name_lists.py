"""Lists of names, written as words separated by white space."""


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())
