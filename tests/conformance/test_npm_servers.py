"""The filesystem and memory servers of the registry, behind a service."""

import base64
import json
from pathlib import Path

from tests.conformance.fixture.resources import PIXEL
from tests.conformance.mcp_servers import package
from tests.conformance.paths import conformance
from tests.support.mcp_service import call, crib, done, server_of

pytestmark = conformance


async def test_the_filesystem_server_reads_and_changes_its_folder(data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/note.txt").write_text("one\ntwo\nthree")
    (folder / "dot.png").write_bytes(base64.b64decode(PIXEL))

    async with crib(data_dir, {"files": package("filesystem", str(folder))}) as service:
        view = await server_of(service, "files")

        async def use(tool: str, **arguments: object) -> str:
            output: str = (await done(service, f"mcp__files__{tool}", arguments))["output"]
            return output

        note, dot, made = str(folder / "deep/note.txt"), str(folder / "dot.png"), str(folder / "made.txt")
        assert await use("read_text_file", path=note, head=2) == "one\ntwo"
        assert await use("read_file", path=note, tail=1) == "three"
        assert "one\ntwo" in await use("read_multiple_files", paths=[note])
        await use("write_file", path=made, content="to be changed\n")
        await use("edit_file", path=made, edits=[{"oldText": "to be changed", "newText": "changed"}])
        await use("create_directory", path=str(folder / "new/er"))
        await use("move_file", source=made, destination=str(folder / "new/er/moved.txt"))
        assert "[DIR] deep" in await use("list_directory", path=str(folder))
        assert "dot.png" in await use("list_directory_with_sizes", path=str(folder))
        assert json.loads(await use("directory_tree", path=str(folder / "new")))[0]["name"] == "er"
        assert "moved.txt" in await use("search_files", path=str(folder), pattern="**/*.txt")
        assert "size: 13" in await use("get_file_info", path=note)
        assert str(folder) in await use("list_allowed_directories")
        picture = await done(service, "mcp__files__read_media_file", {"path": dot})
        structured = await done(service, "mcp__files__read_text_file", {"path": note})
        outside = await call(service, "mcp__files__read_text_file", {"path": "/etc/passwd"})

    assert view["tools"] == 14
    assert (folder / "new/er/moved.txt").read_text() == "changed\n"
    assert [(file["mime"], file["url"]) for file in picture["attachments"]] == [
        ("image/png", f"data:image/png;base64,{PIXEL}")
    ]
    assert structured["structured"] == {"content": "one\ntwo\nthree"}
    assert (outside["status"], outside["error"]["code"]) == ("error", "McpError")
    assert "access denied" in outside["error"]["message"].lower()


async def test_the_memory_server_remembers(data_dir: Path, tmp_path: Path) -> None:
    kept = tmp_path / "memory.jsonl"
    ann = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
    works = {"from": "Ann", "to": "Toolcrib", "relationType": "works on"}

    async with crib(data_dir, {"memory": package("memory", env={"MEMORY_FILE_PATH": str(kept)})}) as service:
        crib_entity = ann | {"name": "Toolcrib", "entityType": "program", "observations": []}
        await done(service, "mcp__memory__create_entities", {"entities": [ann, crib_entity]})
        await done(service, "mcp__memory__create_relations", {"relations": [works]})
        more = {"observations": [{"entityName": "Ann", "contents": ["wears hats"]}]}
        added = await done(service, "mcp__memory__add_observations", more)
        found = await done(service, "mcp__memory__search_nodes", {"query": "hats"})
        read = await service.client.get(
            "/v1/mcp/resources/read", params={"server": "memory", "uri": "memory://knowledge-graph"}
        )
        await service.client.post("/v1/mcp/servers/memory/reconnect")
        graph = await done(service, "mcp__memory__read_graph")

    after = ann | {"observations": ["likes tea", "wears hats"]}
    assert added["structured"] == {"results": [{"entityName": "Ann", "addedObservations": ["wears hats"]}]}
    assert found["structured"]["entities"] == [after]
    assert graph["structured"] == {"entities": [after, crib_entity], "relations": [works]}
    assert json.loads(read.json()["contents"][0]["text"])["entities"][0] == after
    assert "wears hats" in kept.read_text()
