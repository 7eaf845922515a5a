"""What tools need that touch files, and what no edit tool touches."""

from dataclasses import dataclass, field

import pytest

from app.core.errors import PermissionDenied
from app.core.files import require_editable, touching
from app.core.rules import Need


@dataclass
class ToyScope:
    """Names as they are given, some with another one; folders are those it is told of."""

    names: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def name(self, path: str) -> str:
        return self.names.get(path, path)

    def folder(self, path: str) -> str:
        name = self.name(path)
        return name if name in self.folders else name.rpartition("/")[0]


def test_each_file_is_needed_once_by_its_canonical_name() -> None:
    scope = ToyScope({"./a": "a", "link": "b/c"})

    assert touching(scope, "read", ["a", "link", "./a", "b/c"]) == [Need("read", "a"), Need("read", "b/c")]
    assert touching(scope, "edit", ["x"]) == [Need("edit", "x")]
    assert touching(scope, "edit", []) == []


def test_what_is_in_an_extra_root_needs_its_folder_too() -> None:
    scope = ToyScope({"link": "/lib/b/y"}, {"/lib", "/lib/b"})

    assert touching(scope, "read", ["a", "/lib/b/x", "link", "/lib", "/out/z"]) == [
        Need("read", "a"),
        Need("read", "/lib/b/x"),
        Need("read", "/lib/b/y"),
        Need("read", "/lib"),
        Need("read", "/out/z"),
        Need("external_directory", "/lib/b"),
        Need("external_directory", "/lib"),
        Need("external_directory", "/out"),
    ]


@pytest.mark.parametrize("name", [".git", ".git/config", "a/.git/x", "a/.GIT", ".Git/hooks/x", "/lib/.git/x", "a/.git"])
def test_what_belongs_to_git_is_read_but_not_edited(name: str) -> None:
    with pytest.raises(PermissionDenied, match="belongs to git itself") as caught:
        touching(ToyScope({"link": name}), "edit", ["a", "link"])

    assert caught.value.details == {"permission": "edit", "pattern": name, "rule": None}
    assert touching(ToyScope({"link": name}), "read", ["link"])[0] == Need("read", name)


@pytest.mark.parametrize("name", [".gitignore", "a/.github/x", "git", "x.git", ".git2/x", "a.git/b", ".g it"])
def test_what_only_sounds_like_git_is_edited_like_anything(name: str) -> None:
    require_editable(name)
