"""What a page is called: SGLang's digest of its tokens, in a namespace of everything else that decides its bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config import Config
from ...errors import ConfigError, FingerprintError
from ...fingerprint import FingerprintJob, weights_fingerprint, weights_path
from ...geometry import CacheGroup, Full, Window
from ...keys import EPOCH_BYTES, Namespace
from ...sequence import Sequence

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

SCHEME = "sglang/page-sha256/1"  # SHA-256 over the digest before and the page's tokens; seeded by extra_key and salt
_SHAPE = (
    *("layer_num", "start_layer", "end_layer", "head_num", "head_dim", "v_head_dim", "kv_lora_rank"),
    *("qk_rope_head_dim", "dtype", "temporal_dtype", "conv_dtype", "indexer_dtype", "storage_format_tag"),
)


def sequence(namespace: Namespace, keys: Seq[str], before: Seq[str] = ()) -> Sequence:
    """Pages by SGLang's digests, of which `before` are the ones from the first page of the sequence on."""
    digests = np.frombuffer(bytes.fromhex("".join(keys)), np.uint8).reshape(-1, 32)
    parent = bytes.fromhex(before[-1]) if before else b""
    return Sequence.from_digests(namespace, digests, len(before), parent)


class Identity:
    """The namespaces of one engine's pools. The weights' fingerprint is made in the background: until then none."""

    def __init__(self, storage: HiCacheStorageConfig, config: Config, server: Any) -> None:
        """server: SGLang's own arguments; None where there is no server."""
        self._storage, self._server = storage, server
        self._weights: bytes | str | None = config.weights_id
        self._job: FingerprintJob | None = None
        if self._weights is None:
            if server is None:
                raise ConfigError("there is no SGLang server whose weights could be known: set weights_id")
            if server.load_format == "dummy":
                self._weights = os.urandom(16)  # nothing tells two sets of random weights apart
            else:
                self._job = FingerprintJob(
                    server.model_path,
                    lambda _: weights_fingerprint(weights_path(server.model_path, server.revision)),
                )
        self._version, self._replaced = _weight_version(), False
        self._known: dict[tuple[str, str, bool], Namespace] = {}

    def wait(self, seconds: float) -> None:
        """Until the weights have a name, or `seconds` have passed. Raises FingerprintError when they will have none."""
        if self._job is not None:
            self._job.wait(seconds)
            if self._job.error is not None:
                raise FingerprintError(f"{self._job.error}; set weights_id")

    def namespace(self, name: str, pool: Any, form: str, nbytes: int, chained: bool) -> Namespace | None:
        """Of the pages of pool `name`, `nbytes` each, put together as `form` says. chained: SGLang says what is before
        a page."""
        if (version := _weight_version()) != self._version:  # not those of the files any more
            self._version, self._replaced, self._known = version, True, {}
        key = name, form, chained
        if key not in self._known:
            if self._weights is None and self._job is not None:
                self._weights = self._job.result_or_none()
            if self._weights is None:
                return None
            self._known[key] = self._describe(self._weights, name, pool, form, nbytes, chained)
        return self._known[key]

    def known(self) -> list[Namespace]:
        return list(self._known.values())

    def shards(self, name: str) -> int:
        """How many ranks have a part of their own of a page of this pool. Replicas are stored once, by rank 0."""
        return 1 if self._storage.is_mla_model and name != "mamba" else self._storage.tp_size

    def _describe(
        self, weights: bytes | str, name: str, pool: Any, form: str, nbytes: int, chained: bool
    ) -> Namespace:
        storage, server = self._storage, self._server
        said = [
            getattr(server, field, None) for field in ("dtype", "quantization", "json_model_override_args")
        ]
        shape = {field: str(value) for field in _SHAPE if (value := getattr(pool, field, None)) is not None}
        shards, tokens = self.shards(name), int(pool.page_size)
        ranks = (
            f"pp {storage.pp_rank} of {storage.pp_size}, cp {storage.attn_cp_rank} of {storage.attn_cp_size}"
        )
        lifetime = Full() if chained else Window(tokens)
        return Namespace(
            model=";".join(map(str, (storage.model_name, *said))),
            weights=weights,
            kv_dtype=str(pool.dtype),
            scale_format=f"{getattr(server, 'kv_cache_dtype', '')};{getattr(server, 'quantization_param_path', '')}",
            layout=f"sglang {_release()};{_processor()};{type(pool).__name__};{pool.layout};{form};{shape};{ranks}",
            groups=(
                CacheGroup(name, lifetime, tokens, (nbytes,) * shards, copies=storage.tp_size // shards),
            ),
            unit_tokens=tokens,
            shard_grid=(("tp", storage.tp_size), ("pp", storage.pp_size), ("cp", storage.attn_cp_size)),
            epoch=hashlib.sha256(self._version.encode()).digest()[:EPOCH_BYTES] if self._replaced else b"",
            scheme=SCHEME,
        )


def _release() -> str:
    from sglang.version import __version__

    return str(__version__)


def _processor() -> str:
    import torch

    gpu = torch.cuda.is_available()
    name: str = torch.cuda.get_device_name() if gpu else torch.backends.cpu.get_cpu_capability()
    return name


def _weight_version() -> str:
    """What the operator calls the weights as they are now."""
    from sglang.srt.runtime_context import get_serving

    try:
        return str(get_serving().weight_version)
    except Exception:  # no server has set it up
        return ""


def server_arguments() -> Any:
    """SGLang's own, or None where there is no server in this process."""
    from sglang.srt.runtime_context import get_server_args

    try:
        return get_server_args()
    except Exception:
        return None
