"""LiteLLM, run by other_clients.py in an environment that has it. Reads BASE_URL and MODEL."""

# mypy: ignore-errors
from __future__ import annotations

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks another host for prices

import litellm

MODEL = f"openai/{os.environ['MODEL']}"
HELLO = [{"role": "user", "content": "Say hello."}]
SCHEMA = {
    "type": "object",
    "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["people"],
    "additionalProperties": False,
}


def ask(**more):
    asked = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 6, "num_retries": 0, **more}
    return litellm.completion(api_base=os.environ["BASE_URL"], api_key="any", **asked)


def main() -> None:
    whole = ask()
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens == 6 and whole.choices[0].finish_reason == "length"
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == text and rebuilt.usage.completion_tokens == 6
    assert ask(stop=[text[3:5]]).choices[0].message.content == text[: text.index(text[3:5])]
    assert ask(seed=4, temperature=1.2).choices[0].message == ask(seed=4, temperature=1.2).choices[0].message
    held = {"type": "json_schema", "json_schema": {"name": "town", "schema": SCHEMA, "strict": True}}
    found = json.loads(ask(response_format=held, max_tokens=40).choices[0].message.content)
    assert 1 <= found["people"] <= 99, found
    assert ask(extra_body={"device": "cpu", "fallback": "never"}).choices[0].message.content == text
    continued = litellm.text_completion(
        model=f"text-completion-{MODEL}",
        prompt="One, two,",
        max_tokens=3,
        api_base=os.environ["BASE_URL"],
        api_key="any",
    )
    assert continued.choices[0].text
    for kind, more in (
        (litellm.NotFoundError, {"model": "openai/nope"}),
        (litellm.BadRequestError, {"extra_body": {"min_p": 0.5}}),
    ):
        try:
            ask(**more)
        except kind as error:
            assert "not_found" in str(error) or "min_p" in str(error) or "Unknown model" in str(error), error
        else:
            raise AssertionError(f"{more} was taken")


if __name__ == "__main__":
    main()
