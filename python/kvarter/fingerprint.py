"""Which weights these are, told from their files.

`weights_fingerprint` reads headers and a sample, not the whole checkpoint. For every weight file it covers
the name below the model directory, the size, the header (safetensors: all of it; else the first 64 KiB), 66
pages of 4 KiB spread evenly from first to last, and in safetensors the middle page of every tensor, so that
any dense change of a tensor shows. **A change that lies wholly between the sampled pages does not**: where
single values are patched into an existing checkpoint, name the weights by hand (`Namespace.weights` as a
str). Configuration files and the model's own Python code count with all bytes, and so does the revision of
a Hugging Face snapshot. `content_digest` covers all bytes, for adapters.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from .errors import FingerprintError

PAGE = 4096
SPREAD_PAGES = 66  # first, last and 64 between
HEADER = 64 << 10
MAX_SAFETENSORS_HEADER = 100_000_000  # the format's own bound

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CONFIGS = ("config.json", "params.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json")
WHOLE = (".index.json", ".py")


def weights_fingerprint(path: str | os.PathLike[str]) -> bytes:
    """32 bytes that name the weights in a model directory, or in one file; see above for what they cover.

    Reads for as long as that takes (`FingerprintJob` keeps it off the scheduler's thread); files seen
    before, by device, inode, size and times, are not read again. Safe from any thread. Raises
    `FingerprintError` for a path that is missing, unreadable or changing, a directory without weights, and
    a broken safetensors header.
    """
    root = Path(path)
    found = _files(root)
    if root.is_dir():
        chosen = [n for n in found if n.endswith((*WEIGHTS, *WHOLE)) or n.rpartition("/")[2] in CONFIGS]
        if not any(name.endswith(WEIGHTS) for name in chosen):
            listed = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
            raise FingerprintError(
                f"no weight files ({' '.join(WEIGHTS)}) in {root}, found {listed or 'nothing'}"
            )
        return _digest_of(root, chosen, sampled=WEIGHTS)
    return _digest_of(root, found, sampled=("",))


def weights_path(model: str, revision: str | None) -> Path:
    """Where an engine's weights are: the model's directory or file, or its snapshot in the local hub cache. Raises
    `FingerprintError` where they are in neither."""
    path = Path(model)
    if path.exists():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception as error:
        raise FingerprintError(f"the weights of {model!r} are in no local directory: {error}") from None


def content_digest(path: str | os.PathLike[str]) -> bytes:
    """32 bytes over all bytes of a file, or of all files (but hidden ones) in a directory and their names.

    Cached, thread-safe and failing as `weights_fingerprint`.
    """
    root = Path(path)
    found = _files(root)
    if not found:
        raise FingerprintError(f"no files in {root}")
    return _digest_of(root, found, sampled=())


class FingerprintJob:
    """A fingerprint made on a daemon thread that starts at once, for a caller that may not wait."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        fingerprint: Callable[[str | os.PathLike[str]], bytes] = weights_fingerprint,
    ) -> None:
        self._result: bytes | None = None
        self._error: Exception | None = None
        self._path, self._fingerprint = path, fingerprint
        self._thread = threading.Thread(target=self._run, name="kvarter-fingerprint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._fingerprint(self._path)
        except Exception as error:  # whatever it is, the caller sees it in `error`
            self._error = error

    def result_or_none(self) -> bytes | None:
        """The fingerprint; None while it is being made, and for good where it failed. Never blocks."""
        return self._result

    @property
    def error(self) -> Exception | None:
        """Why there will be no fingerprint; None while it is being made or when it is there. Never blocks."""
        return self._error

    def wait(self, timeout: float | None = None) -> bytes | None:
        """Blocks until it is made, has failed or `timeout` seconds have passed; then as `result_or_none`."""
        self._thread.join(timeout)
        return self._result


def _files(root: Path) -> list[str]:
    """Names below `root` of all regular files but hidden ones, sorted; "" for `root` itself if it is one."""
    try:
        if stat.S_ISREG(root.stat().st_mode):
            return [""]
        names: list[str] = []
        for directory, below, files in os.walk(root, onerror=_raise):
            below[:] = [name for name in below if not name.startswith(".")]
            paths = [Path(directory, name) for name in files if not name.startswith(".")]
            names += [
                file.relative_to(root).as_posix() for file in paths if stat.S_ISREG(file.stat().st_mode)
            ]
    except OSError as error:
        raise FingerprintError(f"cannot read {error.filename or root}: {error.strerror}") from error
    return sorted(names)


def _raise(error: OSError) -> None:
    raise error


def _digest_of(root: Path, names: list[str], sampled: tuple[str, ...]) -> bytes:
    revision = (
        root.name if root.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", root.name) else ""
    )
    whole = hashlib.sha256(
        f"kvarter/fingerprint/1 {'sample' if sampled else 'content'} {revision}\n".encode()
    )
    for name in names:
        file = root / name if name else root
        sample = name.endswith(sampled)
        try:
            status = file.stat()
            digest = _file_digest(file, sample, _identity(status))
        except OSError as error:
            if isinstance(error, FingerprintError):  # which is an OSError too
                raise
            raise FingerprintError(f"cannot read {file}: {error.strerror}") from error
        encoded = os.fsencode(name)
        # Lengths are fixed or stand before what they measure, so no two lists of files read the same.
        whole.update(len(encoded).to_bytes(8, "little") + encoded + bytes([sample]) + digest)
    return whole.digest()


def _identity(status: os.stat_result) -> tuple[int, ...]:
    # ctime as well: copying tools set mtime back.
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=4096)
def _file_digest(path: Path, sample: bool, identity: tuple[int, ...]) -> bytes:
    size = identity[2]
    with path.open("rb", buffering=0) as file:
        digest = hashlib.sha256(size.to_bytes(8, "little"))
        fd = file.fileno()
        header, places = b"", set[int]()
        if sample and path.suffix == ".safetensors":
            header, places = _safetensors_header(path, fd, size)
        elif sample:
            header = os.pread(fd, HEADER, 0)
        if sample and size > SPREAD_PAGES * PAGE:
            places |= {(size - PAGE) * i // (SPREAD_PAGES - 1) for i in range(SPREAD_PAGES)}
            digest.update(len(header).to_bytes(8, "little") + header)
            for place in sorted(places):
                digest.update(place.to_bytes(8, "little") + os.pread(fd, PAGE, place))
        else:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        if _identity(os.fstat(fd)) != identity:
            raise FingerprintError(f"{path} changed while it was read")
    return digest.digest()


def _safetensors_header(path: Path, fd: int, size: int) -> tuple[bytes, set[int]]:
    """The header, and where the middle page of every tensor begins."""
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if length > min(size - 8, MAX_SAFETENSORS_HEADER):
        raise FingerprintError(
            f"{path} has {size} bytes and says {length} of them are its safetensors header"
        )
    header = os.pread(fd, length, 8)
    try:
        tensors = [
            value["data_offsets"] for name, value in json.loads(header).items() if name != "__metadata__"
        ]
        middles = [8 + length + (int(begin) + int(end) - PAGE) // 2 for begin, end in tensors]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FingerprintError(f"{path} has a broken safetensors header: {error!r}") from error
    return header, {min(max(place, 0), max(size - PAGE, 0)) for place in middles}
