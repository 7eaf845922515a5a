"""Seals: what a client carries from one round to the next, closed with the key of this service's own vault.

So that it opens after a restart, too: a call that waits for a permission has outlived that.
"""

import base64
import binascii

from app.core.errors import StoreError
from app.core.ports import Sealer

ABOUT = "mcp.request_state"


class StateSeal:
    """What the SDK has sealed and opened with, after its own checks of what is inside."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, payload: bytes) -> str:
        return base64.urlsafe_b64encode(self._sealer.seal(payload, ABOUT)).decode()

    def unseal(self, token: str) -> bytes:
        from mcp.server.request_state import InvalidRequestState

        try:
            return self._sealer.open(base64.b64decode(token, b"-_", validate=True), ABOUT)
        except (binascii.Error, ValueError, StoreError) as error:
            raise InvalidRequestState(str(error)) from None
