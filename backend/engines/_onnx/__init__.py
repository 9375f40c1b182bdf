"""Parts of the ONNX Runtime engines: sessions, tensors, errors, graphs of music models."""
