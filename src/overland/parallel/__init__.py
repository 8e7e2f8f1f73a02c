"""Parallel training applied from outside."""
