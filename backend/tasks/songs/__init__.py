"""Songs: what the models that make sound itself take, how a job on one goes, and what their folders must hold."""
