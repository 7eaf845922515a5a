import httpx
async def test_smoke(client: httpx.AsyncClient) -> None:
    r = await client.post("/v1/calls", json={"tool": "echo", "arguments": {"text": "hi"}})
    print(r.json())
    assert r.json()["result"]["output"] == "hi"
async def test_smoke2(client: httpx.AsyncClient) -> None:
    r = await client.post("/v1/calls", json={"tool": "echo", "arguments": {"text": "hi"}})
    assert r.json()["result"]["output"] == "hi"
async def test_smoke3(client: httpx.AsyncClient) -> None:
    r = await client.post("/v1/calls", json={"tool": "echo", "arguments": {"text": "hi"}})
    assert r.json()["result"]["output"] == "hi"
