from pydantic import BaseModel, Field

from app.sdk import ToolContext, define_tool


class Args(BaseModel):
    city: str = Field(description="Where.")


@define_tool(tool_id="get_weather", description="Tell the weather of a city.", parameters=Args, effect="read")
async def get_weather(args: Args, ctx: ToolContext) -> str:
    ctx.metadata(title=f"Looking at the sky over {args.city}")
    return f"Sunny in {args.city}."
