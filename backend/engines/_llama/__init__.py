"""Parts of the llama.cpp engine: its server process, prompts, streams, grammars, embeddings."""
