"""Tools over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from app.api.access import Reader, Used
from app.api.bodies import JSON
from app.api.problems import not_found
from app.api.shapes import Page, ToolView
from app.core.jsons import dumps

router = APIRouter(prefix="/v1/tools", tags=["tools"])


@router.get("", response_model=Page[ToolView])
async def list_tools(key: Reader, use: Used) -> Response:
    """Every tool a call can name, in the order of their names."""
    tools = [tool.view() for tool in use.dispatcher.registry.all()]
    return Response(dumps({"data": tools, "next_cursor": None}), media_type=JSON)


@router.get("/{name}", response_model=ToolView)
async def get_tool(name: Annotated[str, Path(description="The tool's name.")], key: Reader, use: Used) -> Response:
    """One tool with its schema."""
    tool = use.dispatcher.registry.get(name)
    if tool is None:
        raise not_found(f"tool {name}")
    return Response(dumps(tool.view()), media_type=JSON)
