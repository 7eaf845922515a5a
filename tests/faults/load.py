"""Load: clients that mix all kinds of calls and remember what they were told."""

import asyncio
import itertools
from dataclasses import dataclass, field
from random import Random

from tests.faults.data_checks import Acknowledged
from tests.faults.raw_sockets import GONE, Body, Wire, wired


@dataclass(slots=True)
class Sent:
    """A request with an Idempotency-Key, to be sent again."""

    asked: Body
    token: str
    key: str


@dataclass(slots=True)
class Load:
    """Clients of one service. Everything random comes from one seed; every request has a token of its own."""

    random: Random
    told: Acknowledged = field(default_factory=Acknowledged)
    sent: list[Sent] = field(default_factory=list)
    answers: int = 0
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def run(self, port: int, clients: int, pause: float = 0) -> None:
        """Until the service dies or this is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(port, pause))

    async def repeat(self, port: int) -> None:
        """Send every keyed request of this load again: it must find the call it made, or make it now."""
        async with wired(port) as wire:
            for sent in self.sent:
                await self._call(wire, sent.asked, sent.token, self.random.choice((0, 5)), sent.key)
        self.sent.clear()

    async def _client(self, port: int, pause: float) -> None:
        try:
            async with wired(port) as wire:
                while True:
                    await self._one(wire)
                    await asyncio.sleep(self.random.uniform(0, pause))
        except GONE:
            return

    async def _one(self, wire: Wire) -> None:
        token = f"t{next(self._numbers)}"
        asked = self._ask(token)
        key = f"key-{token}" if self.random.random() < 0.3 else None
        if key:
            self.sent.append(Sent(asked, token, key))
        await self._call(wire, asked, token, self.random.choice((0, 0, 0.02, 1, None)), key)

    def _ask(self, token: str) -> Body:
        match self.random.choice(("echo", "append", "append", "turn", "turn", "slow")):
            case "slow":
                more = {"chunks": self.random.randint(1, 6), "seconds": self.random.uniform(0, 0.02)}
                return {"tool": "slow", "arguments": {"token": token} | more}
            case "turn":
                return {"tool": "turn", "arguments": {"token": token, "seconds": self.random.uniform(0, 0.01)}}
            case tool:
                return {"tool": tool, "arguments": {"token": token}}

    async def _call(self, wire: Wire, asked: Body, token: str, wait: float | None, key: str | None) -> None:
        answer = await wire.call(asked, wait, key)
        if answer.status == 503 and answer.body["code"] == "Stopping":
            raise EOFError("the service says goodbye")
        assert answer.status in (200, 202), (answer.status, answer.content)
        assert (answer.status == 200) == (answer.body["status"] in ("completed", "error")), answer.body
        self.answers += 1
        self.told.note(answer.body, token, key)
