"""A small service: it starts what it is told, says how the process is called, and waits to be killed.

python -m tests.sandbox.spawning_service OWNER SCRIPT
"""

import asyncio
import sys

from app.sandbox.process.spawner import Spawner
from tests.sandbox.spawned import bash, keeper_of, spawner_of, started


async def main() -> None:
    owner, script = sys.argv[1:]
    async with started(Spawner(owner), bash(script)) as child:
        print(spawner_of(child), keeper_of(child), child.pid, flush=True)  # noqa: T201
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main())
