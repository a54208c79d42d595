"""Durable files: what is written is there whole or not at all, and can be verified."""
