"""llama.h by ctypes: the functions that the engine calls, and the structures that they take by value.

A structure's layout is part of a build, and a wrong one would crash the process. So each load compares what the library
returns as defaults with the known layout, field by field, and where the calling convention allows it also the number of
bytes that the library writes. Known: llama.cpp 0.6 and 0.7 (b11549 to b11739).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from ctypes import c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from typing import Any

from backend.common.commands import command
from backend.common.errors import ModelLoadFailed

_Fields = Mapping[str, Any]
TOKEN_BYTES = 12  # struct llama_token_data: id, logit, p
RANDOM_SEED = 0xFFFFFFFF  # the library's own random seed
F16, Q4_0, Q8_0 = 1, 2, 8
CACHE_TYPES = {"f16": F16, "q4_0": Q4_0, "q8_0": Q8_0}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
SPLIT_NONE, SPLIT_LAYER = 0, 1
LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)
ProgressCallback = ctypes.CFUNCTYPE(c_bool, c_float, c_void_p)
AbortCallback = ctypes.CFUNCTYPE(c_bool, c_void_p)


class ModelParams(ctypes.Structure):
    """struct llama_model_params."""

    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        *((name, c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts", "no_host", "no_alloc")),
        ("load_mtp", c_bool),
    ]


class ContextParams(ctypes.Structure):
    """struct llama_context_params."""

    _fields_ = [
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, c_int32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        *((name, c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor")),
        *((name, c_float) for name in ("yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        *((name, c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class Batch(ctypes.Structure):
    """struct llama_batch."""

    _fields_ = [
        ("n_tokens", c_int32),
        *((name, c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    ]


class SamplerChainParams(ctypes.Structure):
    """struct llama_sampler_chain_params."""

    _fields_ = [("no_perf", c_bool)]


class TokenDataArray(ctypes.Structure):
    """struct llama_token_data_array."""

    _fields_ = [("data", c_void_p), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool)]


class LogitBias(ctypes.Structure):
    """struct llama_logit_bias."""

    _fields_ = [("token", c_int32), ("bias", c_float)]


class BufferOverride(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = [("pattern", c_char_p), ("buft", c_void_p)]


class DeviceProps(ctypes.Structure):
    """struct ggml_backend_dev_props."""

    _fields_ = [
        ("name", c_char_p),
        ("description", c_char_p),
        ("memory_free", c_size_t),
        ("memory_total", c_size_t),
        ("type", ctypes.c_int),
        ("device_id", c_char_p),
        ("caps", ctypes.c_byte * 64),
    ]


_MODEL_DEFAULTS: _Fields = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "use_extra_bufts": True,
}
_CONTEXT_DEFAULTS: _Fields = {
    **{"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_outputs_max_per_seq": 1},
    **{"n_threads": 4, "n_threads_batch": 4, "defrag_thold": -1.0, "type_k": F16, "type_v": F16},
    **dict.fromkeys(("rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type"), -1),
    **dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"), -1.0),
    **dict.fromkeys(("offload_kqv", "no_perf", "op_offload", "swa_full"), True),
}
_P, _I, _TEXT = c_void_p, c_int32, c_char_p
# Name: result type, argument types.
_LLAMA: dict[str, tuple[Any, ...]] = {
    "llama_model_default_params": (ModelParams,),
    "llama_context_default_params": (ContextParams,),
    "llama_version": (_TEXT,),
    "llama_backend_init": (None,),
    "llama_log_set": (None, _P, _P),
    "llama_max_devices": (c_size_t,),
    "llama_model_load_from_file": (_P, _TEXT, ModelParams),
    "llama_model_free": (None, _P),
    "llama_init_from_model": (_P, _P, ContextParams),
    "llama_free": (None, _P),
    "llama_adapter_lora_init": (_P, _P, _TEXT),  # freed with the model
    "llama_set_adapters_lora": (_I, _P, _P, c_size_t, _P),
    "llama_n_ctx_seq": (c_uint32, _P),
    "llama_get_memory": (_P, _P),
    "llama_pooling_type": (_I, _P),
    "llama_model_get_vocab": (_P, _P),
    "llama_model_n_embd_out": (_I, _P),
    "llama_model_n_swa": (_I, _P),
    "llama_model_has_encoder": (c_bool, _P),
    "llama_model_is_recurrent": (c_bool, _P),
    "llama_model_is_hybrid": (c_bool, _P),
    "llama_vocab_n_tokens": (_I, _P),
    "llama_vocab_is_eog": (c_bool, _P, _I),
    "llama_vocab_is_control": (c_bool, _P, _I),
    "llama_vocab_bos": (_I, _P),
    "llama_vocab_eos": (_I, _P),
    "llama_vocab_get_add_bos": (c_bool, _P),
    "llama_tokenize": (_I, _P, _TEXT, _I, _P, _I, c_bool, c_bool),
    "llama_token_to_piece": (_I, _P, _I, _P, _I, _I, c_bool),
    "llama_memory_clear": (None, _P, c_bool),
    "llama_memory_seq_rm": (c_bool, _P, _I, _I, _I),
    "llama_memory_seq_cp": (None, _P, _I, _I, _I, _I),
    "llama_memory_seq_pos_min": (_I, _P, _I),
    "llama_decode": (_I, _P, Batch),
    "llama_get_logits_ith": (_P, _P, _I),
    "llama_get_embeddings_seq": (_P, _P, _I),
    "llama_sampler_chain_init": (_P, SamplerChainParams),
    "llama_sampler_chain_add": (None, _P, _P),
    "llama_sampler_init_greedy": (_P,),
    "llama_sampler_init_dist": (_P, c_uint32),
    "llama_sampler_init_top_k": (_P, _I),
    "llama_sampler_init_top_p": (_P, c_float, c_size_t),
    "llama_sampler_init_temp": (_P, c_float),
    "llama_sampler_init_penalties": (_P, _I, _I, c_float, c_float, c_float),
    "llama_sampler_init_logit_bias": (_P, _I, _I, _P),
    "llama_sampler_accept": (None, _P, _I),
    "llama_sampler_apply": (None, _P, _P),
    "llama_sampler_sample": (_I, _P, _P, _I),
    "llama_sampler_free": (None, _P),
}
_GGML: dict[str, tuple[Any, ...]] = {
    "ggml_backend_dev_count": (c_size_t,),
    "ggml_backend_dev_get": (_P, c_size_t),
    "ggml_backend_dev_get_props": (None, _P, _P),
    "ggml_backend_dev_backend_reg": (_P, _P),
    "ggml_backend_reg_name": (_TEXT, _P),
    "ggml_backend_cpu_buffer_type": (_P,),
}
_CANARY_BYTES = 1024


class UnknownLayout(Exception):
    """A structure of the library differs from the known layout. The text names the structure and the field."""


def declare(llama: Any, ggml: Any, build: str) -> None:
    """Set the types of all functions and check the layouts. `build`: its package and version, for the message.

    Raises ModelLoadFailed for a build whose functions or structures are not the known ones.
    """
    try:
        for library, functions in ((llama, _LLAMA), (ggml, _GGML)):
            for name, (result, *arguments) in functions.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        check_layout(llama.llama_model_default_params, ModelParams, _MODEL_DEFAULTS)
        check_layout(llama.llama_context_default_params, ContextParams, _CONTEXT_DEFAULTS)
        _check_penalties(llama)
    except (AttributeError, UnknownLayout) as error:
        raise ModelLoadFailed(
            f"{build} has another programming interface than this version of Touchstone knows: {error}.",
            f"Update Touchstone and the runtime: {command('runtimes update NAME')}.",
        ) from None


def check_layout(default: Any, kind: type[ctypes.Structure], known: _Fields) -> None:
    """Compare the defaults that `default` returns with the known ones, the others with 0. Raises UnknownLayout."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        last = kind._fields_[-1][0]
        descriptor = getattr(kind, last)
        end, written = descriptor.offset + descriptor.size, _written_bytes(default)
        if written != end:
            raise UnknownLayout(f"{kind.__name__} has {written} bytes, {end} are known")
    returned = default()
    for name, _ in kind._fields_:  # type: ignore[misc]
        value, expected = getattr(returned, name), known.get(name, 0)
        if (value or 0) != expected:
            raise UnknownLayout(f"{kind.__name__}.{name} is {value} by default, {expected} is known")


def _written_bytes(default: Any) -> int:
    """Return how many bytes a function that returns a large structure writes.

    On x86-64 the caller passes the address of the result as the first argument, on Linux, macOS and Windows.
    """
    write = ctypes.CFUNCTYPE(None, c_void_p)(ctypes.cast(default, c_void_p).value or 0)
    written = 0
    for fill in (0xA5, 0x5A):
        buffer = (c_uint8 * _CANARY_BYTES)(*(fill,) * _CANARY_BYTES)
        write(ctypes.addressof(buffer))
        written = max(written, *(number + 1 for number, byte in enumerate(buffer) if byte != fill))
    return written


def _check_penalties(llama: Any) -> None:
    """Check the arguments of a function whose number changed between builds, by what it does. Raises UnknownLayout."""
    sampler = llama.llama_sampler_init_penalties(4, 8, 2.0, 0.0, 0.5)
    data = (c_float * 12)()
    ids = ctypes.cast(data, ctypes.POINTER(c_int32))
    for token in range(4):
        ids[3 * token], data[3 * token + 1] = token, 3.0
    array = TokenDataArray(ctypes.addressof(data), 4, -1, False)
    llama.llama_sampler_accept(sampler, 2)
    llama.llama_sampler_apply(sampler, ctypes.byref(array))
    llama.llama_sampler_free(sampler)
    found = {ids[3 * place]: data[3 * place + 1] for place in range(4)}
    if found != {0: 3.0, 1: 3.0, 2: 1.0, 3: 3.0}:
        raise UnknownLayout(f"llama_sampler_init_penalties returned the logits {found}")
