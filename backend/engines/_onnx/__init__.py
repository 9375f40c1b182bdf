"""What the engines on ONNX Runtime share."""
