"""Parts of the OpenVINO GenAI engine: model files and batch models."""
