"""What the llama.cpp engine is made of."""
