"""What the text engines share: prompts, batching, sampling, tokenizers."""
