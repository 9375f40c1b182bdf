"""The stacks of the matrix that are not an interpreter's. A separate file, to run in parallel to the cases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faulty_stacks.stack import Stack, parameters
from tests.faulty_stacks.stacks import STACKS


@pytest.mark.parametrize("stack", parameters(STACKS))
def test_stack_of_its_own(stack: Stack, tmp_path: Path) -> None:
    judged = stack.check(tmp_path)
    if judged is not None:
        asyncio.run(judged)
