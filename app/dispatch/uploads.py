"""Uploads and the calls that write them: an upload is kept until its call has ended, and no longer."""

import logging

from app.core.ports import Uploads
from app.dispatch.live_calls import LiveCall, LiveCalls

log = logging.getLogger(__name__)


def keep_until_end(uploads: Uploads, live: LiveCall, id: str) -> None:
    """Take the upload away when its call is over. One that the next start takes up again keeps it."""

    def look() -> None:
        is_over = live.call.is_final and live.failure is None
        if is_over or live.claimed is not None or not live.is_open:
            uploads.discard(id)

    assert live.task is not None, "a call on the line has a task"
    live.task.add_done_callback(lambda done: look())


def take_up(uploads: Uploads, running: LiveCalls) -> None:
    """After a start: the calls that go on have their uploads still, and the others need none."""
    kept = {id: live for live in running if isinstance(id := (live.request.arguments or {}).get("upload"), str)}
    for id, live in kept.items():
        keep_until_end(uploads, live, id)
    if left := uploads.sweep(kept):
        log.info("after the last stop: %d uploads that no call needs were removed", left)
