"""Parts of the engines on torch: the batch model, CUDA graphs, compiled layers, attention, sampling, model files."""
