"""Imports: API descriptions, brought along or fetched, turned into definitions of http tools."""

import asyncio

from app.core.custom_tools import HttpDefinition, OpenApiImport, Skipped
from app.core.ports import HttpRequest, Outbound
from app.custom.openapi import parse

MOST_BYTES = 16 * 1024 * 1024


class ApiImporter:
    """Reads descriptions in a thread, because a large one takes about a second."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    async def __call__(self, asked: OpenApiImport, principal: str) -> tuple[list[HttpDefinition], list[Skipped]]:
        """Raises `ValueError` for what is no description, and a `CallError` for what cannot be fetched."""
        text = await self._fetch(asked.url, principal) if asked.url is not None else None
        return await asyncio.to_thread(_read, asked, text)

    async def _fetch(self, url: str, principal: str) -> str:
        answer = await self._outbound.send(HttpRequest(method="GET", url=url, limit=MOST_BYTES), owner=principal)
        if answer.status != 200:
            raise ValueError(f"{url} answered {answer.status}.")
        if answer.is_cut:
            raise ValueError(f"{url} answered with more than {MOST_BYTES:,} bytes.")
        return answer.body.decode("utf-8", "replace")


def _read(asked: OpenApiImport, text: str | None) -> tuple[list[HttpDefinition], list[Skipped]]:
    given = asked.document if text is None else text
    return parse.read(
        parse.parse(given) if isinstance(given, str) else given or {},
        prefix=asked.prefix,
        include=asked.include,
        exclude=asked.exclude,
        auth=asked.auth or None,
        server=asked.server,
        url=asked.url,
    )
