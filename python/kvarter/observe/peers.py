"""Whether the settings for other nodes hold together on this host. Nothing is dialed."""

from collections.abc import Callable
from pathlib import Path

from ..config import Config
from ..errors import ConfigError
from .finding import Finding, Level


def peers(load: Callable[[], Config] = Config.load, devices: Path = Path("/sys/class/net")) -> Finding:
    """Where this node meets others, how they prove who they are, and over which interface payload goes."""
    try:
        settings = load().peers
        if settings.listen is None:
            return Finding("peers", Level.OK, "none: `peers.listen` is not set", data={"listen": None})
        from ..peers.options import peer_options

        options = peer_options(settings)
        assert options is not None
    except (ConfigError, ValueError) as error:
        advice = "Correct it: `kvarter serve` refuses it, too."
        return Finding("peers", Level.PROBLEM, str(error), advice)
    data = {"listen": settings.listen, "device": settings.device, "trust": options.trust.kind}
    if settings.device and not (devices / settings.device).exists():
        there = ", ".join(sorted(device.name for device in devices.iterdir()))
        return Finding(
            "peers",
            Level.PROBLEM,
            f"peers.device is {settings.device}, which this host does not have",
            f"Name one of {there}.",
            data,
        )
    where = f"at {settings.listen}, payload over {settings.device or settings.transports}"
    if "tcp" in settings.transports.split(",") and options.trust.kind != "plain":
        return Finding(
            "peers",
            Level.NOTE,
            f"{where}, proof by {options.trust.kind}; payload over TCP has no protection of its own",
            "Keep that interface on a network that only these nodes reach; `peers.ports` makes a firewall rule short.",
            data,
        )
    return Finding("peers", Level.OK, f"{where}, proof by {options.trust.kind}", data=data)
