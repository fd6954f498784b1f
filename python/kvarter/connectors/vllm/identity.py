"""Who a block belongs to: the namespace of an engine, and what else decides the bytes of a request's units."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from vllm.platforms import current_platform
from vllm.version import __version__ as vllm_version

from ...fingerprint import FingerprintJob, content_digest, weights_fingerprint, weights_path
from ...keys import Extra, Namespace, embedding_extra, multimodal_extras, salt_extra
from .layout import Groups, describe

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


class Identity:
    """The namespaces of one engine. Fingerprints are made in the background: until then there is no namespace."""

    def __init__(
        self, vllm_config: VllmConfig, kv_config: KVCacheConfig, groups: Groups, weights_id: str | None
    ) -> None:
        self._config, self._kv_config, self.groups = vllm_config, kv_config, groups
        self._weights: bytes | str | None = weights_id
        self._job: FingerprintJob | None = None
        if weights_id is None and vllm_config.load_config.load_format == "dummy":
            self._weights = os.urandom(16)  # nothing tells two sets of random weights apart
        elif weights_id is None:
            self._job = FingerprintJob(
                vllm_config.model_config.model,
                lambda _: weights_fingerprint(
                    weights_path(vllm_config.model_config.model, vllm_config.model_config.revision)
                ),
            )
        self._base: Namespace | None = None
        self._adapters: dict[tuple[str, str], FingerprintJob] = {}
        self._spaces: dict[tuple[str, str] | None, Namespace] = {}
        self.epoch = b""

    def settled(self) -> bool:
        """Whether the weights have a name, or it is known that they will have none."""
        return self._job is None or self._job.error is not None or self._job.result_or_none() is not None

    def error(self) -> str | None:
        """Why there will be no namespace, once that is known."""
        return str(self._job.error) if self._job is not None and self._job.error is not None else None

    def namespace(self, lora: LoRARequest | None) -> Namespace | None:
        """The namespace of the model, or of one of its adapters; None while a fingerprint is being made."""
        key = (lora.lora_name, lora.lora_path) if lora is not None else None
        known = self._spaces.get(key)
        if known is None:
            known = self._make(lora, key)
            if known is not None:
                self._spaces[key] = known
        return known

    def renew(self) -> list[Namespace]:
        """A new weights epoch. Returns the namespaces that are now void."""
        old, self._spaces = list(self._spaces.values()), {}
        self.epoch = os.urandom(16)
        self._base = None
        return old

    def _make(self, lora: LoRARequest | None, key: tuple[str, str] | None) -> Namespace | None:
        if self._weights is None and self._job is not None:
            self._weights = self._job.result_or_none()
        if self._weights is None:
            return None
        if self._base is None:
            self._base = self._describe(self._weights)
        if lora is None or key is None:
            return self._base
        job = self._adapters.get(key)
        if job is None:
            job = self._adapters[key] = FingerprintJob(lora.lora_path, content_digest)
        digest = job.result_or_none()
        return None if digest is None else self._base.with_adapter(lora.lora_name, digest)

    def _describe(self, weights: bytes | str) -> Namespace:
        model, cache, parallel = (
            self._config.model_config,
            self._config.cache_config,
            self._config.parallel_config,
        )
        dtype = str(model.dtype) if cache.cache_dtype == "auto" else str(cache.cache_dtype)
        overrides = hashlib.sha256(repr(model.hf_overrides).encode()).hexdigest()
        architectures = ",".join(model.architectures)
        # How a kernel packs a block may change with the engine's version and the processor's kind.
        layout = (
            f"vllm {vllm_version};{current_platform.device_name};{_processor()};{describe(self._kv_config)}"
        )
        return Namespace(
            model=f"{architectures};{model.dtype};{model.quantization};{overrides}",
            weights=weights,
            kv_dtype=dtype,
            scale_format=str(getattr(cache, "calculate_kv_scales", False)),
            layout=layout,
            groups=self.groups.geometry.groups,
            unit_tokens=self.groups.geometry.unit_tokens,
            shard_grid=(("tp", parallel.tensor_parallel_size), ("pp", parallel.pipeline_parallel_size)),
            epoch=self.epoch,
        )


def _processor() -> str:
    if not current_platform.is_cpu():
        return str(current_platform.get_device_name())
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def request_extras(request: Request, unit_tokens: int) -> list[Extra]:
    """What besides tokens and namespace decides the bytes of a request's units, sorted by unit.

    Raises ValueError when something of the request cannot be named: such a request is not cached.
    """
    extras: list[Extra] = []
    if request.cache_salt:
        extras.append(salt_extra(request.cache_salt))
    features = [(f.identifier, f.mm_position.offset, f.mm_position.length) for f in request.mm_features]
    extras += multimodal_extras(features, unit_tokens)
    if request.prompt_embeds is not None:
        for unit in range(request.num_prompt_tokens // unit_tokens):
            rows = request.prompt_embeds[unit * unit_tokens : (unit + 1) * unit_tokens]
            data = rows.contiguous().view(-1).cpu()
            digest = hashlib.sha256(data.float().numpy().tobytes() + str(data.dtype).encode()).digest()
            extras.append(embedding_extra(unit, digest))
    extras.sort(key=lambda extra: extra[0])
    return extras
