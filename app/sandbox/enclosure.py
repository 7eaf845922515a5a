"""Enclosures: what a process gives up of itself before it becomes what it was started for."""

import os
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from app.sandbox.orders import Order


def enter(order: "Order", hand_out: Callable[[int], None]) -> list[str]:
    """Become who the order says. What comes back is to be executed."""
    if order.identity is not None:
        user, group = order.identity
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    return list(order.argv)
