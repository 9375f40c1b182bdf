"""Anthropic's Messages API on top of the same jobs: content blocks, tools, typed events, and counted tokens."""
