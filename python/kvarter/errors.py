"""Exceptions of the control path. Each is also the builtin that a caller would expect.

The data path raises none of them: it answers a `kvarter.Status` for each block.
"""


class KvarterError(Exception):
    """Base of everything that Kvarter raises."""


class ConfigError(KvarterError, ValueError):
    """A setting that is unknown, of the wrong kind, or impossible here."""


class GeometryError(KvarterError, ValueError):
    """Cache groups that contradict themselves, or do not fit the engine's tensors."""


class CapacityError(KvarterError, MemoryError):
    """A pool that does not fit the memory of the host or its cgroup."""


class UnsupportedEngine(KvarterError, RuntimeError):
    """An engine version, layout or feature that this connector does not serve."""


class FingerprintError(KvarterError, OSError):
    """Weights whose identity cannot be told."""


class AttachError(KvarterError, ConnectionError):
    """A node that refuses, is gone, or speaks another version."""


class AuditError(KvarterError, AssertionError):
    """The ledger and a recount of the structures disagree: a bug in Kvarter, worth a report."""
