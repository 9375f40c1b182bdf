"""Readers and writers of model file formats, without their libraries."""
