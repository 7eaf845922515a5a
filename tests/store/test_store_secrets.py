import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import SealBroken, StoreUnavailable, VaultLocked
from app.core.secrets import GLOBAL_PRINCIPAL, InvalidSecret, Secret, SecretConfigured
from app.store import secrets, vault
from app.store.secrets import SecretStore
from app.store.vault import FILE_NAME, Vault
from app.store.writer import Writer

HANG = 30
VAULT = Vault(b"k" * 32)
CANARY = "canary-in-the-coal-mine"


class Ticks:
    """A clock that goes one microsecond further each time it is asked."""

    def __init__(self) -> None:
        self._now = 0

    def now(self) -> int:
        self._now += 1
        return self._now

    def monotonic(self) -> float:
        return self.now() / 1_000_000


class Heard:
    """A registrar that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[set[str]] = []

    def replace(self, values: Iterable[str]) -> None:
        self.told.append(set(values))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def book(writer: Writer, heard: Heard) -> SecretStore:
    return SecretStore(writer, VAULT, Ticks(), heard, stored=[])


def change(url: URL, said: str, *params: Any) -> None:
    with closing(sqlite3.connect(str(url.database))) as db, db:
        assert db.execute(said, params).rowcount > 0


def names(listed: list[Secret]) -> list[tuple[str, str]]:
    return [(secret.principal, secret.name) for secret in listed]


def configured(name: str, value: str) -> tuple[Secret, str]:
    return Secret(GLOBAL_PRINCIPAL, name, (), None, None, "config"), value


async def test_a_secret_is_found_by_its_owner_and_by_nobody_else(book: SecretStore) -> None:
    kept, is_new = await book.put("ada", "TOKEN", "adas value", ["A.example"])

    assert (kept, is_new) == (Secret("ada", "TOKEN", ("a.example",), 1, 1), True)
    assert book.find("ada", "TOKEN") == (kept, "adas value")
    assert book.find("bob", "TOKEN") is None
    assert book.find(GLOBAL_PRINCIPAL, "TOKEN") is None
    assert book.find("ada", "token") is None


async def test_ones_own_secret_comes_before_everybodys(book: SecretStore) -> None:
    await book.put(GLOBAL_PRINCIPAL, "TOKEN", "everybodys", [])
    await book.put("ada", "TOKEN", "adas own", [])

    found = {who: held[1] for who in ("ada", "bob", GLOBAL_PRINCIPAL) if (held := book.find(who, "TOKEN"))}
    assert found == {"ada": "adas own", "bob": "everybodys", GLOBAL_PRINCIPAL: "everybodys"}


async def test_lists_hold_ones_own_and_everybodys_by_name(book: SecretStore) -> None:
    for owner, name in (("ada", "B"), (GLOBAL_PRINCIPAL, "B"), (GLOBAL_PRINCIPAL, "A"), ("bob", "C")):
        await book.put(owner, name, f"{owner} {name} value", [])

    assert names(book.listed("ada")) == [(GLOBAL_PRINCIPAL, "A"), ("ada", "B"), (GLOBAL_PRINCIPAL, "B")]
    assert names(book.listed("eve")) == names(book.listed(None)) == [(GLOBAL_PRINCIPAL, "A"), (GLOBAL_PRINCIPAL, "B")]
    assert names(book.listed(GLOBAL_PRINCIPAL)) == names(book.listed(None))


async def test_a_second_one_takes_the_place_of_the_first_and_keeps_its_birthday(
    book: SecretStore, engine: AsyncEngine
) -> None:
    await book.put("ada", "TOKEN", "the first", ["a.example"])
    kept, is_new = await book.put("ada", "TOKEN", "the second", [])

    assert (kept, is_new) == (Secret("ada", "TOKEN", (), 1, 2), False)
    assert book.find("ada", "TOKEN") == (kept, "the second")
    assert await secrets.open_all(engine, VAULT) == [(kept, "the second")]


async def test_a_dropped_secret_is_gone_and_is_dropped_once(book: SecretStore, engine: AsyncEngine) -> None:
    await book.put("ada", "TOKEN", "adas value", [])
    await book.put("bob", "TOKEN", "bobs value", [])

    assert [await book.remove("ada", "TOKEN"), await book.remove("ada", "TOKEN")] == [True, False]

    assert book.find("ada", "TOKEN") is None
    assert names(await secrets.all_stored(engine)) == [("bob", "TOKEN")]


async def test_the_registrar_always_knows_exactly_the_values_there_are(book: SecretStore, heard: Heard) -> None:
    await book.put("ada", "TOKEN", "adas value", [])
    await book.put("bob", "TOKEN", "bobs value", [])
    await book.put("bob", "OTHER", "adas value", [])
    await book.put("ada", "TOKEN", "adas second", [])
    await book.remove("bob", "OTHER")

    assert heard.told == [
        set(),
        {"adas value"},
        {"adas value", "bobs value"},
        {"adas value", "bobs value"},
        {"adas value", "bobs value", "adas second"},
        {"bobs value", "adas second"},
    ]
    assert book.values() == heard.told[-1]


async def test_a_book_is_the_same_after_a_restart(
    book: SecretStore, writer: Writer, engine: AsyncEngine, heard: Heard
) -> None:
    await book.put("ada", "TOKEN", "adas value ä 漢 😀\n", ["*.a.example"])
    await book.put(GLOBAL_PRINCIPAL, "TOKEN", "everybodys", [])

    again = SecretStore(writer, VAULT, Ticks(), heard, stored=await secrets.open_all(engine, VAULT))

    assert again.listed("ada") == book.listed("ada")
    assert again.find("ada", "TOKEN") == book.find("ada", "TOKEN")
    assert heard.told[-1] == again.values() == {"adas value ä 漢 😀\n", "everybodys"}


async def test_what_is_not_committed_is_not_shown(writer: Writer, book: SecretStore, heard: Heard) -> None:
    await book.put("ada", "TOKEN", "adas value", [])
    await writer.close()

    with pytest.raises(StoreUnavailable):
        await book.put("ada", "TOKEN", "adas second", [])
    with pytest.raises(StoreUnavailable):
        await book.remove("ada", "TOKEN")

    assert book.find("ada", "TOKEN") == (Secret("ada", "TOKEN", (), 1, 1), "adas value")
    assert heard.told == [set(), {"adas value"}]


async def test_a_change_whose_asker_went_away_is_shown_as_it_was_committed(
    book: SecretStore, engine: AsyncEngine
) -> None:
    asker = asyncio.create_task(book.put("ada", "TOKEN", "adas value", []))
    await asyncio.sleep(0)
    asker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker

    async with asyncio.timeout(HANG):
        while book.find("ada", "TOKEN") is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await secrets.open_all(engine, VAULT) == [book.find("ada", "TOKEN")]


async def test_of_many_changes_at_once_the_book_shows_what_the_database_keeps(
    book: SecretStore, engine: AsyncEngine
) -> None:
    changes = [
        book.remove("ada", "TOKEN") if n % 3 == 1 else book.put("ada", "TOKEN", f"value {n}", []) for n in range(30)
    ]
    answers = await asyncio.gather(*changes)

    assert [answer[1] for answer in answers if isinstance(answer, tuple)] == [True] + [True, False] * 9 + [True]
    assert await secrets.open_all(engine, VAULT) == [book.find("ada", "TOKEN")]
    assert book.values() == {"value 29"}


async def test_a_configured_secret_stands_before_a_stored_one_and_is_never_kept(
    writer: Writer, engine: AsyncEngine, heard: Heard, book: SecretStore
) -> None:
    await book.put(GLOBAL_PRINCIPAL, "TOKEN", "the stored one", [])
    stored = await secrets.open_all(engine, VAULT)
    mine = configured("TOKEN", "the configured one")
    book = SecretStore(writer, VAULT, Ticks(), heard, stored=stored, configured=[mine])

    assert book.find("ada", "TOKEN") == mine
    assert book.listed("ada") == [mine[0]]
    assert book.values() == heard.told[-1] == {"the stored one", "the configured one"}
    assert await secrets.all_stored(engine) == [stored[0][0]]


async def test_a_configured_secret_cannot_be_changed_but_a_principal_may_have_its_own(
    writer: Writer, engine: AsyncEngine, heard: Heard
) -> None:
    mine = configured("TOKEN", "the configured one")
    book = SecretStore(writer, VAULT, Ticks(), heard, stored=[], configured=[mine])

    with pytest.raises(SecretConfigured):
        await book.put(GLOBAL_PRINCIPAL, "TOKEN", "another", [])
    with pytest.raises(SecretConfigured):
        await book.remove(GLOBAL_PRINCIPAL, "TOKEN")
    await book.put("ada", "TOKEN", "adas value", [])

    assert book.find("ada", "TOKEN") == (Secret("ada", "TOKEN", (), 1, 1), "adas value")
    assert book.find("bob", "TOKEN") == mine
    assert names(await secrets.all_stored(engine)) == [("ada", "TOKEN")]


async def test_what_breaks_the_rules_is_neither_kept_nor_shown(book: SecretStore, engine: AsyncEngine) -> None:
    for name, value, domains in [("9", "a value", []), ("A", "short", []), ("A", "a value", ["http://a"])]:
        with pytest.raises(InvalidSecret):
            await book.put("ada", name, value, domains)

    assert (book.listed("ada"), await secrets.all_stored(engine)) == ([], [])


async def test_one_owner_cannot_fill_the_book(writer: Writer, heard: Heard) -> None:
    many = [(Secret("ada", f"N{n}", (), 1, 1), f"value {n}") for n in range(secrets.MAX_PER_OWNER)]
    book = SecretStore(writer, VAULT, Ticks(), heard, stored=many)

    with pytest.raises(InvalidSecret, match="at most 1,000 secrets"):
        await book.put("ada", "MORE", "one too many", [])
    await book.put("ada", "N0", "in place of another", [])
    await book.put("bob", "MORE", "another owner", [])


async def test_the_value_is_in_no_file_of_the_database(book: SecretStore, url: URL) -> None:
    await book.put("ada", "TOKEN", CANARY, [])

    files = [path for path in Path(str(url.database)).parent.iterdir() if path.is_file()]
    assert {path.name for path in files} >= {"toolcrib.db", "toolcrib.db-wal"}
    assert any(b"TOKEN" in path.read_bytes() for path in files)
    assert not any(CANARY.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    "moved",
    [
        "UPDATE secrets SET value = (SELECT value FROM secrets WHERE principal = 'ada') WHERE principal = 'bob'",
        "UPDATE secrets SET principal = '*' WHERE principal = 'ada'",
        "UPDATE secrets SET name = 'OTHER' WHERE principal = 'ada'",
        "UPDATE secrets SET domains = '[\"evil.example\"]' WHERE principal = 'ada'",
        "UPDATE secrets SET value = x'00' WHERE principal = 'ada'",
    ],
)
async def test_a_value_opens_only_in_the_row_it_was_sealed_for(
    book: SecretStore, engine: AsyncEngine, url: URL, moved: str
) -> None:
    await book.put("ada", "TOKEN", "adas value", ["a.example"])
    await book.put("bob", "TOKEN", "bobs value", ["a.example"])

    change(url, moved)

    with pytest.raises(SealBroken, match=r"The secret \w+ of \S+ cannot be decrypted") as refused:
        await secrets.open_all(engine, VAULT)
    assert "value" not in str(refused.value)


async def test_another_key_file_opens_no_secret(book: SecretStore, engine: AsyncEngine) -> None:
    await book.put("ada", "TOKEN", "adas value", [])

    with pytest.raises(SealBroken, match=r"The secret TOKEN of ada .* Restore the right file"):
        await secrets.open_all(engine, Vault(b"l" * 32))


async def test_a_key_is_made_where_nothing_is_sealed(engine: AsyncEngine, tmp_path: Path) -> None:
    made = await secrets.open_vault(engine, tmp_path)
    again = await secrets.open_vault(engine, tmp_path)

    assert again.open(made.seal(b"data", "a"), "a") == b"data"


async def test_a_lost_key_is_not_replaced_while_secrets_are_sealed_with_it(
    book: SecretStore, engine: AsyncEngine, tmp_path: Path
) -> None:
    await book.put("ada", "TOKEN", "adas value", [])

    with pytest.raises(VaultLocked, match=f"{FILE_NAME} is missing, and stored secrets are encrypted with it"):
        await secrets.open_vault(engine, tmp_path)

    assert vault.read(tmp_path) is None
