"""Tests of the hardware inventory."""
