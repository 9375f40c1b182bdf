"""LlamaParameters as the server sends them to a worker: a JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from backend.common.llama_parameters import LlamaParameters, llama_parameters_from
from backend.engines import LoadRequest

CARDS = ("0000:01:00.0", "0000:02:00.0")


@pytest.mark.parametrize(
    "parameters",
    [
        LlamaParameters(),
        LlamaParameters(gpu_layers=0),
        LlamaParameters(gpu_layers=17, devices=CARDS, split=(0.25, 0.75), cache_type_k="q8_0", cache_type_v="q4_0"),
        LlamaParameters(flash_attention="on", expert_layers_in_memory=-1),
    ],
)
def test_parameters_survive_the_way_to_the_worker(parameters: LlamaParameters) -> None:
    assert llama_parameters_from(json.loads(json.dumps(asdict(parameters)))) == parameters


def test_the_defaults_put_everything_on_the_device() -> None:
    parameters = LoadRequest("cuda:0", "/m.gguf", 64, 1).llama
    assert (parameters.gpu_layers, parameters.devices, parameters.expert_layers_in_memory) == (None, (), 0)
