"""LangChain's ChatOpenAI, run by other_clients.py in an environment that has it. Reads BASE_URL and MODEL."""

# mypy: ignore-errors
from __future__ import annotations

import os

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

MODEL = os.environ["MODEL"]
SCHEMA = {
    "title": "town",
    "type": "object",
    "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["people"],
    "additionalProperties": False,
}


def chat(**more):
    settings = {"model": MODEL, "temperature": 0, "max_tokens": 6, "max_retries": 0, "timeout": 120, **more}
    return ChatOpenAI(base_url=os.environ["BASE_URL"], api_key="any", **settings)


def main() -> None:
    turns = [SystemMessage("Be brief."), HumanMessage("Hi."), AIMessage("Hello."), HumanMessage("Say hello again.")]
    whole = chat().invoke(turns)
    assert whole.content and whole.usage_metadata["output_tokens"] == 6, whole
    assert whole.response_metadata["finish_reason"] == "length"
    pieces = list(chat(stream_usage=True).stream(turns))
    assert "".join(piece.content for piece in pieces) == whole.content
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) == 6
    assert len(chat(n=2, seed=1).generate([turns]).generations[0]) == 2
    listed = chat(logprobs=True, top_logprobs=1).invoke(turns).response_metadata["logprobs"]["content"]
    assert len(listed) == 6
    town = chat(max_tokens=40).with_structured_output(SCHEMA, method="json_schema").invoke("A town.")
    assert 1 <= town["people"] <= 99, town
    placed = chat(extra_body={"device": "cpu", "fallback": "never"}, include_response_headers=True).invoke("Hi.")
    assert placed.response_metadata["headers"]["x-device-used"] == "cpu"
    try:
        chat(model="nope").invoke("Hi.")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("an unknown model was taken")


if __name__ == "__main__":
    main()
