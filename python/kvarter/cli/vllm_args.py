"""`kvarter vllm-args`: what to hand to vLLM, for both ways in."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from kvarter.cli.output import AsJson, fail

CONNECTOR = "connector"
TIER = "tier"

WHEN = {
    CONNECTOR: (
        "Kvarter holds the memory: exact in the face of every fault below the engine, hybrid models by boundary, "
        "restarts from disk. The default."
    ),
    TIER: (
        "vLLM's own offloading holds the memory and Kvarter the disk behind it. Take it where that offloading is in "
        "use already, or where its other tiers (p2p, obj) stand beside this one. On GPUs only, as vLLM has it."
    ),
}


def vllm_args(
    as_json: AsJson = False,
    memory: Annotated[str, typer.Option(help="Host memory for KV blocks.")] = "8GiB",
    disk: Annotated[str | None, typer.Option(metavar="DIR", help="Directory of the log on disk.")] = None,
    capacity: Annotated[str, typer.Option(help="Bytes of everything in that directory.")] = "100GiB",
) -> None:
    """Print vLLM's --kv-transfer-config for both ways in, and say when to take which.

    The connector is Kvarter as a whole; the tier is its disk behind vLLM's own CPU pool.
    """
    try:
        size = TypeAdapter(ByteSize).validate_python
        nbytes = int(size(memory))
        size(capacity)
    except ValidationError as error:
        fail(
            f"--memory {memory!r} and --capacity {capacity!r} are sizes such as 8GiB: {error.errors()[0]['msg']}",
            status=2,
        )
    ways = both(memory, nbytes, {"path": disk, "capacity": capacity} if disk is not None else None)
    if as_json:
        said = {way: {"when": WHEN[way], "kv_transfer_config": config} for way, config in ways.items()}
        print(msgspec.json.encode(said).decode())
        return
    for way, config in ways.items():
        typer.echo(f"{way}: {WHEN[way]}\n\n  --kv-transfer-config '{msgspec.json.encode(config).decode()}'\n")


def both(memory: str, nbytes: int, disk: dict[str, str] | None) -> dict[str, dict[str, Any]]:
    """vLLM's kv_transfer_config by way; a tier without a directory gets one to be filled in."""
    shared = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    tier = {
        "type": "KvarterTier",
        "module_path": "kvarter.connectors.vllm_tier",
        "disk": disk or {"path": "DIR", "capacity": "100GiB"},
    }
    return {
        CONNECTOR: {
            "kv_connector": "KvarterConnector",
            "kv_connector_module_path": "kvarter.connectors.vllm",
            **shared,
            "kv_connector_extra_config": {"dram": memory, **({"disk": disk} if disk else {})},
        },
        TIER: {
            "kv_connector": "OffloadingConnector",
            **shared,
            "kv_connector_extra_config": {
                "spec_name": "TieringOffloadingSpec",
                "cpu_bytes_to_use": nbytes,
                "secondary_tiers": [tier],
            },
        },
    }
