"""Qualcomm's NPU through QNN."""

from __future__ import annotations

from backend.devices import Backend, InstallOffer

BACKEND = Backend(
    name="onnx-qnn",
    label="ONNX Runtime QNN",
    kind="npu",
    rank=220,
    runtimes=("qnn",),
    aliases=("qnn", "QNNExecutionProvider", "onnx_qnn"),
    indexed=False,
    systems=("win32", "linux"),
    vendors=("Qualcomm",),
    offers=(InstallOffer("qnn", kinds=("npu",)),),
)
MECHANISMS = {"onnxruntime": "_mechanisms.onnx"}
PROVIDERS = ("qnn",)
# What ONNX Runtime's page of this provider names, but for what chooses the card, which the device's id does.
OPTIONS = (
    "backend_path backend_type enable_htp_fp16_precision enable_htp_shared_memory_allocator extended_udma htp_arch "
    "htp_graph_finalization_optimization_mode htp_performance_mode offload_graph_io_quantization op_packages "
    "profiling_file_path profiling_level qnn_context_priority qnn_saver_path rpc_control_latency soc_model vtcm_mb"
).split()
COMPILES_SHAPES = True  # it takes fixed shapes alone
ROUNDS_INPUTS = True  # float32 is computed with inputs of 11 bits or float16, unless told otherwise
LISTS_DEVICES = True  # so a provider that lists none has none
