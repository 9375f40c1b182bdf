"""A running server with the real processor and two scripted cards, for stacks about receipts."""
