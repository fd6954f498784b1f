"""`kvarter sglang-args`: what to hand to SGLang."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import msgspec
import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from kvarter.cli.output import AsJson, fail
from kvarter.errors import ConfigError
from kvarter.node.home import node_path

PAGE_TOKENS = 64

SERVED = "Each rank has a session with the node, which all engines of the host share: start it with `kvarter serve`."
EMBEDDED = (
    "The pool is the server's own and goes with it; one rank only. With --node a node serves all ranks."
)


def sglang_args(
    as_json: AsJson = False,
    node: Annotated[
        str | None, typer.Option(metavar="SOCKET", help="unix:// and the socket of `kvarter serve`.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Without a node: host memory for KV pages.")] = "8GiB",
    page: Annotated[int, typer.Option(min=1, help="Tokens in a page.")] = PAGE_TOKENS,
    keep_host_cache: Annotated[
        bool, typer.Option("--keep-host-cache", help="Let SGLang keep pages in host memory of its own, too.")
    ] = False,
) -> None:
    """Print the flags that put Kvarter beneath SGLang's hierarchical cache.

    SGLang's own host memory is a buffer then, so that a page is in DRAM once. Where a model or a feature does not allow
    that, SGLang says so at its start: --keep-host-cache.
    """
    try:
        TypeAdapter(ByteSize).validate_python(memory)
        if node is not None:
            node_path(node)
    except ValidationError as error:
        fail(f"--memory {memory!r} is a size such as 8GiB: {error.errors()[0]['msg']}", status=2)
    except ConfigError as error:
        fail(str(error), status=2)
    found = flags(node, memory, page, buffer_only=not keep_host_cache)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    typer.echo(f"{SERVED if node else EMBEDDED}\n")
    rest = iter(found)
    lines = [f"  {next(rest)}"]  # the only one without a value
    lines += [f"  {flag} {shlex.quote(next(rest))}" for flag in rest]
    typer.echo(" \\\n".join(lines))


def flags(
    node: str | None = None,
    memory: str = "8GiB",
    page: int = PAGE_TOKENS,
    *,
    buffer_only: bool = True,
    **settings: Any,
) -> list[str]:
    """As separate words. settings: further ones of Kvarter's own."""
    backend = {
        "backend_name": "kvarter",
        "module_path": "kvarter.connectors.sglang",
        "class_name": "KvarterHiCache",
        "interface_v1": 1,  # pages are copied where they lie
        "hicache_storage_pass_prefix_keys": True,  # so that the pages before a page are known
        **({"node": node} if node else {"dram": memory}),
        **settings,
    }
    return [
        "--enable-hierarchical-cache",
        *("--page-size", str(page)),
        *("--hicache-mem-layout", "page_first"),
        *("--hicache-write-policy", "write_through"),
        *(("--hicache-host-memory-mode", "buffer_only") if buffer_only else ()),
        *("--hicache-storage-backend", "dynamic"),
        *("--hicache-storage-backend-extra-config", msgspec.json.encode(backend).decode()),
    ]
