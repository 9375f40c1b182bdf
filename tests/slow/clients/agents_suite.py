"""OpenAI's Agents SDK against a server: `BASE_URL` and `MODEL` in the environment. Needs `openai-agents`."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import os

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key="any"), use_for_tracing=False)
MODEL = os.environ["MODEL"]
called: list[int] = []


@function_tool
def weather(days: int) -> str:
    """The weather of the next days."""
    called.append(days)
    return "sun"


class Town(BaseModel):
    """What the model is held to."""

    people: int = Field(ge=1, le=9)


async def main() -> None:
    plain = Agent(name="a", instructions="Be brief.", model=MODEL, model_settings=ModelSettings(max_tokens=4000))
    assert (await Runner.run(plain, "Say hello.")).final_output
    streamed = Runner.run_streamed(plain, "Say hello.")
    kinds = [event.type async for event in streamed.stream_events()]
    assert "raw_response_event" in kinds and streamed.final_output
    settings = ModelSettings(max_tokens=400, tool_choice="required")
    tooled = Agent(name="b", model=MODEL, tools=[weather], model_settings=settings)
    assert (await Runner.run(tooled, "What is the weather?", max_turns=3)).final_output and called
    typed = Agent(name="c", model=MODEL, output_type=Town, model_settings=ModelSettings(max_tokens=400))
    assert isinstance((await Runner.run(typed, "How many?")).final_output, Town)
    both = Agent(name="d", model=MODEL, output_type=Town, tools=[weather], model_settings=ModelSettings(max_tokens=400))
    try:
        assert isinstance((await Runner.run(both, "How many?", max_turns=3)).final_output, Town)
    except MaxTurnsExceeded:  # a small model may call the tool each time; each turn was a call or a Town
        assert len(called) >= 2


asyncio.run(main())
