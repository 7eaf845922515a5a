"""Whatever is done to many calls at once: each ends once, nothing runs twice, nothing is left behind."""

import asyncio
import random
from typing import Any

import pytest

from app.core.errors import Canceled
from app.dispatch.live_calls import LiveCall
from tests.support.scale import rounds
from tests.support.services import Crib, until
from tests.support.toy_tools import ToyHook, Toys


def submit_something(crib: Crib, dice: random.Random, number: int) -> LiveCall:
    note = {"tool": "note", "arguments": {"text": f"{number}"}, "effect": dice.choice(["read", "write"])}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("note", {"text": f"{number}"}),
        ("note", {"text": f"{number}"}),
        ("relay", note),
        ("relay", {"tool": "relay", "arguments": note, "effect": dice.choice(["read", "write"])}),
        ("wait", {"name": f"{number}", "effect": dice.choice(["read", "write"]), "say": "x" * number}),
        ("say", {"texts": ["a", "b"]}),
        ("fail", {}),
        ("bug", {}),
        ("none", {}),
    ]
    tool, arguments = dice.choice(asked)
    timeout = dice.choice([None, None, 0.005])
    return crib.submit(tool, arguments, timeout=timeout)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(rounds(3, 8)))
async def test_each_call_ends_once_and_nothing_runs_twice(crib: Crib, toys: Toys, seed: int) -> None:
    dice = random.Random(seed)
    hook = ToyHook("h", {"note", "say"})
    crib.hooks = [hook] if seed % 2 else []
    crib.settings["grace"] = dice.choice([0.0, 0.02])
    number = 0
    for _ in range(3):
        await crib.open()
        lives = []
        for _ in range(25):
            number += 1
            lives.append(submit_something(crib, dice, number))
            if dice.random() < 0.3:
                await asyncio.sleep(dice.choice([0, 0, 0.002]))
            if dice.random() < 0.3:
                dice.choice(lives).interrupt(Canceled("chaos"))
            if dice.random() < 0.3:
                toys.go[f"{dice.randrange(1, number + 1)}"].set()
            (hook.go.clear if dice.random() < 0.2 else hook.go.set)()
        await (crib.crash() if dice.random() < 0.5 else crib.close())
    hook.go.set()
    for waiting in range(1, number + 1):
        toys.go[f"{waiting}"].set()
    await crib.open()
    await until(lambda: len(crib.services.dispatcher.live_calls) == 0)

    rows = crib.rows("SELECT id, tool, status, arguments FROM calls")
    ends = {row["id"]: crib.end(row["id"]) for row in rows}
    done = [row["arguments"] for row in rows if row["tool"] == "note" and ends[row["id"]] == ("completed", None)]
    seqs = [event["seq"] for event in crib.events()]
    assert len(toys.notes) == len(set(toys.notes))
    assert {f'{{"text":"{note}"}}' for note in toys.notes} >= set(done)
    assert seqs == list(range(1, len(seqs) + 1))
    assert {end[1] for end in ends.values()} <= {
        None,
        "Canceled",
        "Timeout",
        "Interrupted",
        "ExitCode:3",
        "Internal",
        "UnknownTool",
    }
    assert crib.services.dispatcher._gates._gates == {}
