"""Reads, checks and writes ONNX files without the `onnx` package."""
