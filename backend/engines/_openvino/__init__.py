"""What the OpenVINO GenAI engine is made of."""
