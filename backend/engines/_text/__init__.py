"""Parts of the text engines: batching, KV cache, sampling, prompts, tokenizer files."""
