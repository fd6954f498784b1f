"""How long blocks of a class wait for their next use, learned as it happens, and what that makes them worth.

The time from a use of a block to the next one is a *spell*. A spell ends by a use, or is cut off: the block is
forgotten, or still waits. An online Kaplan-Meier estimate over bins of age gives each class's hazard of reuse, pulled
towards that of all classes together where little was seen. A block of age a is worth its Gittins index: the best
rate, over all horizons X, of P(used within X) for E[time held within X].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_PER_OCTAVE = 2
_FIRST, _LAST = 0.25, 1 << 18  # seconds: the bins between them; below and above is one bin each
BINS = (int(np.log2(_LAST / _FIRST))) * _PER_OCTAVE + 2
_EDGES = np.concatenate([[0.0], _FIRST * 2.0 ** (np.arange(BINS) / _PER_OCTAVE)])
_WIDTHS = np.diff(_EDGES)
_LATER = np.tri(BINS, dtype=bool).T  # [a, x]: the horizon x is not before age a
_TRUST = 20.0  # spells of a class that weigh as much as all of its kind
_AT_ONCE = 4  # classes whose worth is computed in one step
_HALF_LIFE = 1 << 18  # spells after which what was seen counts half


def bins(ages: _Floats) -> npt.NDArray[np.int64]:
    """The bin of each age in seconds. What a clock that went back makes younger than now is as old as that is far."""
    octaves = np.log2(np.maximum(np.abs(ages), _FIRST / 4)) - np.log2(_FIRST)
    found: npt.NDArray[np.int64] = np.clip(np.floor(octaves * _PER_OCTAVE).astype(np.int64) + 1, 0, BINS - 1)
    return found


def survival_bytes(classes: int) -> int:
    return 4 * classes * BINS * 8


class Survival:
    """Spells of `classes` classes, and the worth of a block by class and age.

    kinds: class c is of kind c % kinds, and is pulled towards its kind, which is pulled towards all. The first class of
    each kind speaks also for those classes that are not `told` apart.
    """

    def __init__(self, classes: int, kinds: int) -> None:
        self._kinds = kinds
        self._used = np.zeros((classes, BINS))  # spells that ended by a use, by age
        self._cut = np.zeros((classes, BINS))
        self._at_risk = np.zeros((classes, BINS))  # of a fit: those that reach each age
        self._spells = 0.0
        self._fitting: Iterator[None] = iter(())
        self.worth = np.tile(1.0 / (_EDGES[1:] + _FIRST), (classes, 1))  # until anything is known: LRU

    @property
    def nbytes(self) -> int:
        return survival_bytes(len(self._used))

    def ended(self, classes: npt.NDArray[np.int64], ages: _Floats, by_use: bool) -> None:
        np.add.at(self._used if by_use else self._cut, (classes, bins(ages)), 1.0)
        self._spells += len(classes)
        if self._spells > _HALF_LIFE:
            self._spells /= 2
            self._used /= 2
            self._cut /= 2

    def fit(
        self, waiting: Iterable[tuple[npt.NDArray[np.int64], _Floats]], told: npt.NDArray[np.bool_]
    ) -> None:
        """Learns from all spells so far, in steps. waiting: classes and ages of blocks that wait now, a part a step.
        told: for each class of a kind, in order, whether it has an opinion of its own.
        """
        self._fitting = self._fit(waiting, told)

    def step(self) -> bool:
        """A bounded part of what `fit` began; False when nothing is left of it."""
        return next(self._fitting, True) is None

    def _fit(
        self, waiting: Iterable[tuple[npt.NDArray[np.int64], _Floats]], told: npt.NDArray[np.bool_]
    ) -> Iterator[None]:
        at_risk, groups = self._at_risk, range(0, len(self._used), self._kinds)
        np.copyto(at_risk, self._cut)
        for classes, ages in waiting:
            np.add.at(at_risk, (classes, bins(ages)), 1.0)
            yield
        of_kind = np.zeros((2, self._kinds, BINS))  # used, at risk
        of_first = np.zeros((2, self._kinds, BINS))
        for start, apart in zip(groups, told, strict=True):
            group = slice(start, start + self._kinds)
            if not (at_risk[group].any() or self._used[group].any()):
                continue
            cut = at_risk[group] / 2
            at_risk[group] += self._used[group]
            at_risk[group] = np.cumsum(at_risk[group, ::-1], 1)[:, ::-1] - cut
            for total in (of_kind, of_first)[: 2 - apart]:
                total[0] += self._used[group]
                total[1] += at_risk[group]
            yield
        of_all = of_kind[0].sum(0) / (of_kind[1].sum(0) + 1.0)
        kind = (of_kind[0] + _TRUST * of_all) / (of_kind[1] + _TRUST)
        at_risk[: self._kinds] = of_first[1]
        present = np.flatnonzero(at_risk[:, 0] > 0)
        yield
        for at in range(0, len(present), _AT_ONCE):
            some = present[at : at + _AT_ONCE]
            used = self._used[some]
            first = some < self._kinds
            used[first] = of_first[0][some[first]]
            self.worth[some] = gittins((used + _TRUST * kind[some % self._kinds]) / (at_risk[some] + _TRUST))
            yield


def gittins(hazard: _Floats) -> _Floats:
    """worth[class, bin] of hazard[class, bin], the share of those that reach a bin that is used within it."""
    alive = np.cumprod(1 - np.minimum(hazard, 0.999), 1)
    alive = np.concatenate([np.ones((len(alive), 1)), alive], 1)
    held = np.cumsum((alive[:, :-1] + alive[:, 1:]) / 2 * _WIDTHS, 1)
    held = np.concatenate([np.zeros((len(held), 1)), held], 1)
    used = alive[:, :-1, None] - alive[:, None, 1:]
    time = held[:, None, 1:] - held[:, :-1, None]
    rates = np.where(_LATER, used / np.where(_LATER, np.maximum(time, 1e-300), 1.0), 0.0)
    return np.asarray(rates.max(2))
