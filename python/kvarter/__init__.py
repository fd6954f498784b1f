"""Kvarter: keeps an inference engine's KV blocks in host memory and gives them back exactly."""

__version__ = "0.1.0"
