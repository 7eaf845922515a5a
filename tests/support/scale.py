"""How much of the long tests runs: a sample, or all of it with TOOLCRIB_TEST_FULL=1 (`make faults FULL=1`)."""

import os

FULL = os.environ.get("TOOLCRIB_TEST_FULL") == "1"


def rounds(sample: int, full: int) -> int:
    """The number of rounds of a test that needs many."""
    return full if FULL else sample
