"""How devices are reached, placed and proved through a library: torch, ONNX Runtime, ggml."""
