"""Where the engine's tensors are, and what follows from it: the copy engine, its stream, and sleep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ... import _core
from ...config import Config
from ...errors import UnsupportedEngine

if TYPE_CHECKING:
    import torch

_CHECKSUM_THREADS = 2  # in each direction, unless copy_threads says otherwise


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """The one device that all tensors are on. Raises `UnsupportedEngine` for several, and for a kind that no member of
    the copy engine reaches."""
    import torch

    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        raise UnsupportedEngine(
            f"this rank's cache is on {sorted(map(str, devices))}; it must be on one device"
        )
    device = devices.pop()
    if device.type == "cuda" and torch.version.hip:
        raise UnsupportedEngine(
            f"the cache is on {device} of ROCm {torch.version.hip}; this version of Kvarter copies to and from "
            "host and CUDA memory only"
        )
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedEngine(
            f"the cache is on {device}; this version of Kvarter copies to and from host and CUDA memory only"
        )
    return device


def make_copy_engine(config: Config, device: torch.device) -> _core.CopyEngine:
    """The member of the copy seam for this device, unless the settings name another.

    Raises `UnsupportedEngine`, saying what was found, where there is no driver for it.
    """
    faults, cuda = config.faults, config.cuda
    if config.copy_member == "cuda" or device.type == "cuda":
        if config.copy_member == "host":
            raise UnsupportedEngine(f"copy_member is 'host', and the cache is on {device}; set it to 'auto'")
        try:
            engine = _core.CudaCopyEngine(
                device.index or 0,
                driver=cuda.driver or "",
                threads=config.copy_threads or _CHECKSUM_THREADS,
                kernel_below=cuda.kernel_below,
            )
        except RuntimeError as error:
            raise UnsupportedEngine(f"no copies to and from {device}: {error}") from None
    else:
        engine = _core.HostCopyEngine(config.copy_threads)
    if config.copy_member != "faulty":
        return engine
    return _core.FaultyCopyEngine(
        engine, delay=faults.delay, fail_every=faults.fail_every, flip_every=faults.flip_every
    )


def compute_stream(device: torch.device) -> Callable[[], int]:
    """What says which stream the engine's next kernels go to; 0, the default one, where there are none."""
    if device.type != "cuda":
        return lambda: 0
    import torch

    return lambda: int(torch.cuda.current_stream(device).cuda_stream)


def before_sleep(settle: Callable[[], None]) -> None:
    """Calls `settle` before the engine's memory is unmapped by sleep.

    vLLM waits for what is on the device, and says nothing to connectors: copies that are still to be put there would
    find their memory gone.
    """
    from vllm.device_allocator import get_mem_allocator_instance

    allocator = get_mem_allocator_instance()

    def settled(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            settle()
            return call(*args, **kwargs)

        return wrapper

    for name in ("sleep", "discard"):
        setattr(allocator, name, settled(getattr(allocator, name)))
