"""Reads a trace of any known format, says which it found, and says in one sentence what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import TraceError
from .formats import FORMATS, Format, Line, Malformed
from .trace import Trace

_GZIP = b"\x1f\x8b"
_KNOWN = ", ".join(kind.name for kind in FORMATS)


@dataclass
class _Skips:
    """What --skip-bad passed over."""

    allowed: bool
    count: int = 0

    def take(self, error: TraceError) -> None:
        if not self.allowed:
            raise error
        self.count += 1


def read(path: str | Path, *, skip_bad: bool = False, block_tokens: int | None = None) -> Trace:
    """The trace in this file of JSON lines. skip_bad: passes over lines that are malformed and counts them.
    block_tokens: instead of what the trace says or its lengths imply.

    Raises `TraceError`: file and line, what was found, what was expected.
    """
    path = Path(path)
    skips = _Skips(skip_bad)
    lines = _objects(path, skips)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: no request in it; expected one JSON object a line, of one of {_KNOWN}")
    kind = _detect(path, first)
    reader = kind.reader(block_tokens)
    at = first
    for line in _chain(first, lines):
        at = line
        try:
            reader.take(line)
        except Malformed as malformed:
            skips.take(_error(path, line.number, kind, str(malformed)))
    try:
        requests, block = reader.finish()
    except Malformed as malformed:
        raise _error(path, at.number, kind, str(malformed)) from None
    if not requests:
        raise TraceError(f"{path}: no request in it; expected at least one {kind.name} request")
    return Trace.of(requests, path.name, kind.name, block, skipped=skips.count, notes=tuple(reader.notes))


def _error(path: Path, number: int, kind: Format, what: str) -> TraceError:
    return TraceError(f"{path}, line {number}: {what} (read as {kind.name})")


def _chain(first: Line, rest: Iterator[Line]) -> Iterator[Line]:
    yield first
    yield from rest


def _detect(path: Path, line: Line) -> Format:
    for kind in FORMATS:
        if kind.fits(line.value):
            return kind
    fields = ", ".join(sorted(line.value)[:6]) or "no fields"
    raise TraceError(
        f"{path}, line {line.number}: an object with {fields}; expected the fields of one of {_KNOWN}"
    )


def _objects(path: Path, skips: _Skips) -> Iterator[Line]:
    if path.is_dir():
        raise TraceError(f"{path} is a directory; expected a file of JSON lines")
    try:
        with path.open("rb") as file:
            start = file.read(2)
            if start == _GZIP:
                raise TraceError(
                    f"{path}, line 1: gzip data; expected JSON lines, so unpack it first (gunzip)"
                )
            file.seek(0)
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                try:
                    yield Line(number, _object(raw))
                except Malformed as malformed:
                    skips.take(TraceError(f"{path}, line {number}: {malformed}"))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; expected a file of JSON lines") from None


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except UnicodeDecodeError:
        raise Malformed("not UTF-8 text; expected one JSON object") from None
    except (ValueError, RecursionError) as error:
        at = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise Malformed(f"not JSON{at}; expected one JSON object") from None
    if not isinstance(value, dict):
        raise Malformed(f"a JSON {type(value).__name__}; expected one JSON object")
    return value
