from pydantic import BaseModel, Field

from app.sdk import ToolContext, define_tool


class Args(BaseModel):
    city: str = Field(description="Name of the city.")


@define_tool(tool_id="get_weather", description="Get the weather in a city.", parameters=Args, effect="read")
async def get_weather(args: Args, ctx: ToolContext) -> str:
    ctx.metadata(title=f"Looking up {args.city}")
    return f"Sunny in {args.city}."
