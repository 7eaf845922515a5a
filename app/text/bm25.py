"""Ranking: which tools fit a query best, by Okapi BM25 over their names, titles, descriptions and parameter names."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import log
from typing import Any

K1 = 1.2
B = 0.75
WEIGHTS = {"name": 3, "title": 2, "description": 1, "parameters": 1}
"""How many times a word counts, by where it stands."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

View = dict[str, Any]


def rank(query: str, tools: list[View]) -> list[View]:
    """The tools that share a word with the query, the best first; among equals by name."""
    documents = [_document(tool) for tool in tools]
    lengths = [sum(document.values()) for document in documents]
    usual = sum(lengths) / len(lengths) if lengths else 0.0
    scores = [0.0] * len(tools)
    for word in sorted(set(words(query))):
        having = sum(word in document for document in documents)
        rarity = log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        for place, document in enumerate(documents):
            if count := document[word]:
                scores[place] += rarity * count * (K1 + 1) / (count + K1 * (1 - B + B * lengths[place] / usual))
    found = [
        (-score, tool["name"], place) for place, (score, tool) in enumerate(zip(scores, tools, strict=True)) if score
    ]
    return [tools[place] for _, _, place in sorted(found)]


def words(text: str) -> Iterator[str]:
    """The words of a text in their plainest form; `readFile`, `read_file` and `read-files` are the same two."""
    for run in _WORD.findall(text):
        for word in _CAMEL.split(run):
            yield _singular(word.lower())


def _document(tool: View) -> Counter[str]:
    """How often each word counts for a tool."""
    texts = {name: tool[name] for name in ("name", "title", "description")}
    texts["parameters"] = " ".join(_parameters(tool["parameters"]))
    counted: Counter[str] = Counter()
    for field, text in texts.items():
        for word in words(text):
            counted[word] += WEIGHTS[field]
    return counted


def _parameters(schema: Any) -> Iterator[str]:
    """The names of all parameters in a schema, those of objects inside it too."""
    match schema:
        case dict():
            properties = schema.get("properties")
            yield from properties if isinstance(properties, dict) else ()
            yield from _parameters_of(schema.values())
        case list():
            yield from _parameters_of(schema)


def _parameters_of(parts: Iterable[Any]) -> Iterator[str]:
    for part in parts:
        yield from _parameters(part)


def _singular(word: str) -> str:
    """`queries` is found by `query`, `boxes` by `box`, `files` by `file`; `class`, `status` and `is` stay."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1]
