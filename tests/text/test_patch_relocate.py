"""Patches that were written for another folder."""

import pytest

from app.core.errors import InvalidArgs
from app.text.patch.from_shell import relocate

PATCH = """\
*** Begin Patch
*** Add File: new.txt
+*** Add File: not a header
*** Update File: ./old.py
*** Move to: deep/moved.py
@@
 *** Update File: a line that stays
-a
+b
*** Delete File: "gone.txt"
*** Delete File: /abs/gone.txt
*** End Patch
"""


def test_every_path_and_nothing_else_starts_in_the_folder() -> None:
    assert (
        relocate(PATCH, "src/app/..")
        == """\
*** Begin Patch
*** Add File: src/new.txt
+*** Add File: not a header
*** Update File: src/old.py
*** Move to: src/deep/moved.py
@@
 *** Update File: a line that stays
-a
+b
*** Delete File: src/gone.txt
*** Delete File: /abs/gone.txt
*** End Patch
"""
    )


@pytest.mark.parametrize("folder", [".", "./", "a/.."])
def test_in_the_workspace_itself_it_stays_as_it_is(folder: str) -> None:
    assert relocate(PATCH, folder) == PATCH


def test_what_cannot_be_read_is_left_to_who_applies_it() -> None:
    assert relocate("*** Begin Patch\nnonsense", "src") == "*** Begin Patch\nnonsense"


def test_a_patch_whose_paths_cannot_be_reached_is_refused() -> None:
    wrapped = '{"input": "*** Begin Patch\\n*** Delete File: a\\n*** End Patch"}'

    with pytest.raises(InvalidArgs, match="use the tool apply_patch"):
        relocate(wrapped, "src")
