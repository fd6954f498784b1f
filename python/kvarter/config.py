"""Settings, checked at start. In layers: defaults, a file, the environment, the engine's extra config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ByteSize, ConfigDict, Field, PrivateAttr, field_validator

from . import _core
from .errors import ConfigError
from .policy import DEFAULT, POLICIES, named
from .tiers.log import DiskOptions

MIN_DRAM = 2 << 20
MAX_BLOCKS = (1 << 32) - 2  # as csrc/include/kvarter/index.h has it

Seconds = Annotated[float, Field(gt=0, le=1e6)]


def disabled() -> bool:
    """Whether `KVARTER_DISABLE=1` turns everything off without touching the engine's configuration."""
    return os.environ.get("KVARTER_DISABLE", "") not in ("", "0")


class Setting(NamedTuple):
    """One setting: its dotted name, its value, and where that was said ("default" if nowhere)."""

    name: str
    value: Any
    source: str


class Faults(BaseModel):
    """Makes the copy engine delay, fail and corrupt; for tests of what is above it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay: float = Field(0.0, ge=0, le=1e6, description="Seconds before each block")
    fail_every: int = Field(0, ge=0, description="Every n-th block fails; 0: none")
    flip_every: int = Field(0, ge=0, description="Every n-th block has one byte flipped; 0: none")


class Cuda(BaseModel):
    """How the copy engine for CUDA devices works."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: str | None = Field(None, description="Path of the driver's library, instead of libcuda.so.1")
    kernel_below: int = Field(
        -1, ge=-1, description="Runs of fewer bytes go by a kernel; 0: none; -1: as measured at start"
    )


class Disk(BaseModel):
    """A log on local disk below the pool; off without a path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(None, description="Directory of its own; made if it is not there")
    capacity: ByteSize | None = Field(None, gt=0, description="Bytes of everything in it, as du says")
    segment: ByteSize = Field(
        ByteSize(256 << 20), ge=1 << 20, description="Of a new directory: bytes of a file"
    )
    device: Literal["auto", "io_uring", "threads"] = Field("auto", description="How it is read and written")
    queue_depth: int = Field(16, ge=1, le=256, description="Reads and writes at a time")
    admit_all: bool = Field(False, description="Also what was seen only once, when the disk is full")
    measure: bool = Field(True, description="Load only what comes sooner than it is computed")
    straight: bool = Field(
        False,
        description="Beneath SGLang without a node: from its host pool to disk and back, and no dram is used",
    )


class Peers(BaseModel):
    """Other nodes that blocks come from and go to; off without `listen`. For `kvarter serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str | None = Field(
        None, description="ADDRESS:PORT where peers meet; this node dials from it, too"
    )
    device: str | None = Field(None, description="Interface that payload may use, like eth1")
    transports: str = Field("tcp", description="What UCX may use, by its names; rc needs a UCX with RDMA")
    ports: str | None = Field(
        None, pattern=r"^\d+-\d+$", description="LOWEST-HIGHEST that UCX may listen at; default: any"
    )
    static: tuple[str, ...] = Field(
        (), description="HOST:PORT of each of a few other nodes, with commas between"
    )
    directory: str | None = Field(
        None, description="redis://, rediss:// or redis+cluster://HOST:PORT, instead of `static`"
    )
    secret_file: str | None = Field(None, description="File of mode 0600 with a secret that all nodes share")
    tls_cert: str | None = Field(None, description="This node's certificate, instead of a secret")
    tls_key: str | None = Field(None, description="Its key, of mode 0600")
    tls_ca: str | None = Field(
        None, description="The authority that vouches for all nodes, and for nobody else"
    )
    look_seconds: Seconds = Field(0.1, description="What a request waits for what other nodes have")
    directory_seconds: Seconds = Field(0.1, description="What one call at the directory may take")
    in_flight: ByteSize = Field(ByteSize(128 << 20), gt=0, description="Asked of one node at a time")
    lend_share: float = Field(0.25, gt=0, le=1, description="Of the pool, that may be leased for other nodes")
    copies: int = Field(
        2, ge=1, le=16, description="Nodes that are to have what is used often; 1: none are made ahead"
    )
    heartbeat: Seconds = Field(0.2, description="Between signs of life")
    patience: Seconds = Field(0.8, description="Of silence, after which a node is given up")
    measure: bool = Field(True, description="Load only what comes sooner than it is computed")

    @field_validator("static", mode="before")
    @classmethod
    def _listed(cls, said: Any) -> Any:
        return (
            tuple(filter(None, (one.strip() for one in said.split(",")))) if isinstance(said, str) else said
        )


class Config(BaseModel):
    """What Kvarter can be told. Immutable; made by `load`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dram: ByteSize | None = Field(
        None, ge=MIN_DRAM, description="Payload memory of the pool; default a quarter of what is allowed"
    )
    max_blocks: int | None = Field(
        None, gt=0, le=MAX_BLOCKS, description="Blocks (times shards) that the pool can hold records of"
    )
    weights_id: str | None = Field(
        None, min_length=1, description="Names the weights instead of a fingerprint of their files"
    )
    node: str | None = Field(
        None,
        pattern=r"^unix:///.+",
        description="unix:// and the socket of `kvarter serve`, which then has pool and disk; default: embedded",
    )
    directory: str | None = Field(
        None, description="Owner-only directory of the socket that workers attach to"
    )
    hold_seconds: Seconds = Field(2.0, description="How long a match stays true without being loaded")
    load_seconds: Seconds = Field(10.0, description="A load that takes longer becomes a recompute")
    store_seconds: Seconds = Field(60.0, description="A store that takes longer is given up")
    flush_seconds: Seconds = Field(
        10.0, description="Longest wait for a copy whose source is about to be reused"
    )
    boundary_interval: int = Field(
        4096,
        ge=1,
        description="Tokens between the boundaries inside a prompt that sliding windows are kept for",
    )
    copy_threads: int = Field(
        0,
        ge=0,
        le=64,
        description="Threads that copy; 0: in the engine's own thread. On a GPU, threads that compute checksums",
    )
    copy_member: Literal["auto", "host", "cuda", "faulty"] = Field(
        "auto", description="Which copy engine; auto: the one for the device that the cache is on"
    )
    policy: str = Field(DEFAULT, description=f"What to keep in memory: {', '.join(POLICIES)}")
    disk: Disk = Field(Disk.model_validate({}), description="A log below the pool")
    peers: Peers = Field(Peers.model_validate({}), description="Other nodes")
    cuda: Cuda = Field(Cuda.model_validate({}), description="The copy engine for CUDA devices")
    faults: Faults = Field(Faults.model_validate({}), description="For the faulty copy engine")

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("policy")
    @classmethod
    def _known(cls, name: str) -> str:
        named(name)  # says which there are
        return name

    @classmethod
    def load(cls, engine: Mapping[str, Any] | None = None) -> Config:
        """What all layers say together: defaults, below a TOML or YAML file, below the environment
        (`KVARTER_DRAM=8GiB`, `KVARTER_FAULTS__DELAY=0.1`), below `engine`, the engine's extra config.

        The file is the one that `config` in `engine` names, else KVARTER_CONFIG, else the user's own
        `$XDG_CONFIG_HOME/kvarter/config.toml` if there is one. Raises `ConfigError`, one sentence for all that is
        wrong in any layer, a setting that a higher one overrides included.
        """
        from . import layers  # it needs this class

        values, sources = layers.merged(dict(engine or {}))
        config = cls.model_validate(values)
        config._sources = sources
        return config

    def explain(self) -> list[Setting]:
        """Every setting, in the order of this class, those of a nested table by dotted names."""
        from . import layers

        return [
            Setting(name, value, self._sources.get(name, "default")) for name, value in layers.leaves(self)
        ]

    def disk_options(self, rank: int = 0, sharers: int = 1) -> DiskOptions | None:
        """The log of one of the `sharers` of the host; None when there is none.

        Raises `ConfigError` when only one of path and capacity is said, and for `straight`.
        """
        if self.disk.straight:
            raise ConfigError(
                "disk.straight is for a rank of SGLang's that has no node; unset it, or unset node"
            )
        return self._disk_options(rank, sharers)

    def straight_disk(self) -> DiskOptions:
        """The log that lies straight under the engine's own memory. Raises `ConfigError` when none is set."""
        options = self._disk_options()
        if options is None:
            raise ConfigError(
                "disk.straight is set, and neither disk.path nor disk.capacity is; it needs both"
            )
        return options

    def _disk_options(self, rank: int = 0, sharers: int = 1) -> DiskOptions | None:
        if self.disk.path is None and self.disk.capacity is None:
            return None
        if self.disk.path is None or self.disk.capacity is None:
            said, missing = ("path", "capacity") if self.disk.path is not None else ("capacity", "path")
            raise ConfigError(f"disk.{said} is set and disk.{missing} is not; a disk tier needs both")
        path = os.path.expanduser(self.disk.path)  # noqa: PTH111  as given, otherwise
        return DiskOptions(
            path=path if sharers == 1 else os.path.join(path, f"dp{rank}"),  # noqa: PTH118
            capacity=int(self.disk.capacity) // sharers,
            segment_bytes=int(self.disk.segment),
            device=self.disk.device,
            queue_depth=self.disk.queue_depth,
            admit_all=self.disk.admit_all,
        )

    def pool_bytes(self, sharers: int = 1, root: str = "") -> int:
        """`dram`, or a quarter of the cgroup's limit (of the memory available where there is none) over `sharers`.

        root: stands before /proc and /sys; a directory of a test's own.
        """
        if self.dram is not None:
            return int(self.dram)
        limits = _core.memory_limits(root)
        allowed = limits["cgroup_limit"] or limits["available"]
        return max(min(allowed, limits["available"]) // 4 // sharers, MIN_DRAM)
