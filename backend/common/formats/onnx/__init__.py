"""Parse, check and write ONNX files without the `onnx` package."""
