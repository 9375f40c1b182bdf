"""Fake packages with faults seen in real ones, each in a separate interpreter."""
