"""The storage backend of SGLang's hierarchical cache. `kvarter sglang-args` prints the flags that name it.

SGLang makes one `KvarterHiCache` (backend.py) in each rank's scheduler process, and calls it from three threads: one
asks what is stored, one reads, one writes. The backend has a session (session.py) with the node of the host, or a store
of its own; rank.py has both and the pools. What a page is called is in identity.py, where it lies in pages.py.
"""

from .backend import KvarterHiCache

__all__ = ["KvarterHiCache"]
