"""Validation errors of request bodies, and their bounded cost with thousands of errors."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from backend.common.config.strict_model import SHOWN
from backend.common.errors import Validation
from backend.jobs.generate_request import GenerateRequest, parse_request


@pytest.mark.parametrize(("count", "looked_at"), [(SHOWN, SHOWN + 1), (100_000, SHOWN)])
def test_of_unknown_keys_the_first_are_looked_at(count: int, looked_at: int) -> None:
    body = {"prompt": "x", **{f"k{number}": number for number in range(count)}, "seeds": 1}
    with pytest.raises(ValidationError) as caught:
        GenerateRequest.model_validate(body)
    assert caught.value.error_count() == looked_at
    with pytest.raises(Validation, match="'k0' is not known; 'k1' is not known"):
        parse_request(body)


def test_known_keys_count_wherever_they_stand() -> None:
    body = {**{f"k{number}": number for number in range(100)}, "prompt": "x", "temperature": 1}
    with pytest.raises(Validation) as caught:
        parse_request(body)
    assert "k99" not in caught.value.detail and "prompt" not in caught.value.detail
