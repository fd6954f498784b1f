"""Least recently used, leaf first: what vLLM and radix trees do, and the reference here."""

from .base import Columns, Policy, Rows, Scores


class Lru(Policy):
    name = "lru"
    ranks = False

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        return columns.last_use[rows].astype(float)
