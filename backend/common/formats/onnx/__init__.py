"""Parse, check and write ONNX files without the `onnx` package.

Own code, because runtimes and users' environments, where the proofs write test models, lack that package, and because
the catalogue reads the facts of files of gigabytes, bounds-checked, without parsing their weights.
"""
