"""What the engines on torch share."""
