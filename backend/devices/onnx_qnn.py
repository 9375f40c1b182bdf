"""Qualcomm's NPU through QNN."""

from __future__ import annotations

from backend.common.device_api import Backend, InstallOffer, OnnxProvider

_OPTIONS = (
    "backend_path backend_type enable_htp_fp16_precision enable_htp_shared_memory_allocator extended_udma htp_arch "
    "htp_graph_finalization_optimization_mode htp_performance_mode offload_graph_io_quantization op_packages "
    "profiling_file_path profiling_level qnn_context_priority qnn_saver_path rpc_control_latency soc_model vtcm_mb"
).split()


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
    onnx=OnnxProvider(
        names=("qnn",),
        options=tuple(_OPTIONS),
        rounds_inputs=True,
        compiles_shapes=True,  # it accepts only fixed shapes
        lists_devices=True,
    ),
)
