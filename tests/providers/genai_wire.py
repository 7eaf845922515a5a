"""The Gemini package's own client on a wire that ends here: what it sends is kept, and answered as is given."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from google import genai
from google.genai import types

Sent = list[dict[str, Any]]


@contextmanager
def wired(answers: Any) -> Iterator[tuple[genai.Client, Sent]]:
    """A list of answers comes as the events of one stream."""
    sent: Sent = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        if not isinstance(answers, list):
            return httpx2.Response(200, json=answers)
        lines = "".join(f"data: {json.dumps(answer)}\n\n" for answer in answers)
        return httpx2.Response(200, text=lines, headers={"content-type": "text/event-stream"})

    with httpx2.Client(transport=httpx2.MockTransport(respond)) as wire:
        yield genai.Client(api_key="k", http_options=types.HttpOptions(httpx_client=wire)), sent
