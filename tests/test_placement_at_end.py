"""Where the model is at the end of a job: looked up again by each kind of session, and by the worker program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.child.programs.run import _Worker
from backend.common.device_api import TorchAccess
from backend.common.types import Placement, PlacementPart
from backend.devices._mechanisms.torch_placement import TorchPlace
from backend.engines import Session, adapter
from backend.engines._audio.song_session import SongSession
from backend.engines._audio.stem_session import StemsSession
from backend.engines._audio.tune_session import TuneSession
from backend.engines._onnx.session import GraphSession
from backend.engines._text.session import TextSession

ALL = Placement(1.0, [PlacementPart("cuda:0", 1.0)], "all there")


class Tensor:
    """A tensor that can be moved."""

    def __init__(self, device: str) -> None:
        self.device = SimpleNamespace(type=device)

    def numel(self) -> int:
        return 10

    def element_size(self) -> int:
        return 4


def torch_place(allocated_bytes: int = 40) -> TorchPlace:
    access = TorchAccess(None, "cuda:0", "cuda", lambda: None, lambda: allocated_bytes)
    return TorchPlace("cuda:0", access)


def sessions() -> list[Session]:
    """Return a session of each kind, whose library finds the model on the card."""
    none = cast(Any, None)
    place = SimpleNamespace(placement=lambda sessions: ALL)
    return [
        TextSession(none, none, none, 1, ALL, 1, {}, find_placement=lambda: ALL),
        SongSession(none, ALL, 1, {}, lambda: None, lambda: ALL),
        TuneSession(none, none, ALL, 1, {}, None, lambda: ALL),
        StemsSession(none, ALL, 1, {}, None, lambda: ALL),
        GraphSession(place, none, none, ALL, 1, {}, [], None),
    ]


@pytest.mark.parametrize("session", sessions(), ids=lambda session: type(session).__name__)
def test_each_session_looks_its_model_up_again(session: Session) -> None:
    assert session.find_placement() == ALL


def test_a_graph_that_was_computed_while_loading_is_not_looked_up() -> None:
    none = cast(Any, None)
    assert GraphSession(none, none, none, Placement(None, [], "none left"), 1, {}, [], None).find_placement() is None


def test_tensors_that_moved_are_found_where_they_are() -> None:
    tensors, place = [Tensor("cuda"), Tensor("cuda")], torch_place(80)
    assert place.placement(tensors).on_device == 1.0
    tensors[0].device.type = "cpu"
    assert place.placement(tensors).on_device == 0.5
    tensors[1].device.type = "cpu"
    moved = place.placement(tensors)
    assert (moved.on_device, [part.where for part in moved.parts]) == (0.0, ["cpu"])


def test_memory_that_was_freed_makes_the_placement_unknown() -> None:
    assert torch_place(0).placement([Tensor("cuda")]).on_device is None


def test_an_adapter_is_asked_again() -> None:
    tensors = [Tensor("cuda")]
    module = cast(Any, SimpleNamespace(tensors=lambda model: tensors))
    asked = (cast(Any, None), module, None, cast(Any, None), torch_place())
    assert adapter._placement(*asked).on_device == 1.0
    tensors[0].device.type = "cpu"
    assert adapter._placement(*asked).on_device == 0.0


def worker(find_placement: Any) -> _Worker:
    made = _Worker(cast(Any, SimpleNamespace(send_all=lambda frames: None)))
    made._session = cast(Any, SimpleNamespace(find_placement=find_placement))
    return made


def test_a_library_that_fails_to_look_fails_no_job() -> None:
    def fail() -> Placement:
        raise RuntimeError("CUDA error: unspecified launch failure")

    found = cast(Any, worker(fail)._find_placement())
    assert (found["on_device"], found["parts"]) == (None, [])
    assert found["evidence"].startswith("At the end of the job the placement could not be looked up: RuntimeError")


def test_a_library_that_cannot_tell_sends_nothing() -> None:
    assert worker(lambda: None)._find_placement() is None


def test_the_driver_is_asked_at_the_end_too() -> None:
    made = worker(lambda: ALL)
    made._witness = cast(Any, SimpleNamespace(check=lambda placement: Placement(None, [], "another card")))
    assert cast(Any, made._find_placement())["evidence"] == "another card"
