"""What tests of walled processes share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.core.walls import Backend, Leave

BACKENDS = (Backend.BWRAP, Backend.LANDLOCK)


class NoEgress:
    """For walls that let nobody out."""

    @asynccontextmanager
    async def serve(self, listener: int, leave: Leave) -> AsyncIterator[None]:
        raise AssertionError("nobody is let out here")
        yield
