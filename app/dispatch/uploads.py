"""Uploads and the calls that write them: an upload is deleted when its call has ended."""

import logging

from app.core.ports import Uploads
from app.dispatch.live_calls import LiveCall, LiveCalls

log = logging.getLogger(__name__)


def discard_at_end(uploads: Uploads, live: LiveCall, id: str) -> None:
    """Delete the upload when its call has ended. A call that the next start resumes keeps it."""

    def discard() -> None:
        is_over = live.call.is_final and live.record.failure is None
        if is_over or live.record.claimed is not None or not live.is_open:
            uploads.discard(id)

    assert live.task is not None, "a started call has a task"
    live.task.add_done_callback(lambda done: discard())


def restore_uploads(uploads: Uploads, live_calls: LiveCalls) -> None:
    """After a start: resumed calls keep their uploads, all others are deleted."""
    needed = {id: live for live in live_calls if isinstance(id := (live.request.arguments or {}).get("upload"), str)}
    for id, live in needed.items():
        discard_at_end(uploads, live, id)
    if left := uploads.sweep(needed):
        log.info("after the last stop: %d uploads that no call needs were removed", left)
