"""Ranks tools for a query by Okapi BM25 over their names, titles, descriptions and parameter names."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import log
from typing import Any

K1 = 1.2
B = 0.75
WEIGHTS = {"name": 3, "title": 2, "description": 1, "parameters": 1}
"""How often a word counts, by field."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

View = dict[str, Any]


def rank(query: str, tools: list[View]) -> list[View]:
    """The tools that share a word with the query, best first, then by name."""
    documents = [_document(tool) for tool in tools]
    lengths = [sum(document.values()) for document in documents]
    average = sum(lengths) / len(lengths) if lengths else 0.0
    scores = [0.0] * len(tools)
    for word in sorted(set(words(query))):
        containing = sum(word in document for document in documents)
        rarity = log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
        for index, document in enumerate(documents):
            if count := document[word]:
                scores[index] += rarity * count * (K1 + 1) / (count + K1 * (1 - B + B * lengths[index] / average))
    found = [
        (-score, tool["name"], index) for index, (score, tool) in enumerate(zip(scores, tools, strict=True)) if score
    ]
    return [tools[index] for _, _, index in sorted(found)]


def words(text: str) -> Iterator[str]:
    """Lower-case singular words; `readFile`, `read_file` and `read-files` are the same two."""
    for run in _WORD.findall(text):
        for word in _CAMEL.split(run):
            yield _singular(word.lower())


def _document(tool: View) -> Counter[str]:
    """Weighted word counts of a tool."""
    texts = {name: tool[name] for name in ("name", "title", "description")}
    texts["parameters"] = " ".join(_parameters(tool["parameters"]))
    counts: Counter[str] = Counter()
    for field, text in texts.items():
        for word in words(text):
            counts[word] += WEIGHTS[field]
    return counts


def _parameters(schema: Any) -> Iterator[str]:
    """The names of all parameters in a schema, nested ones too."""
    match schema:
        case dict():
            properties = schema.get("properties")
            yield from properties if isinstance(properties, dict) else ()
            parts: Iterable[Any] = schema.values()
        case list():
            parts = schema
        case _:
            return
    for part in parts:
        yield from _parameters(part)


def _singular(word: str) -> str:
    """`queries` -> `query`, `boxes` -> `box`, `files` -> `file`; `class`, `status` and `is` stay."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1]
