"""Whether the settings that an engine started here would get are in order."""

from ..config import Config, disabled
from ..errors import ConfigError
from .finding import Finding, Level


def settings() -> Finding:
    """The file's and the environment's; the engine's extra config is not known here."""
    try:
        given = {s.name: s.source for s in Config.load().explain() if s.source != "default"}
    except ConfigError as error:
        return Finding(
            "settings", Level.PROBLEM, str(error), "Correct it; `kvarter config show` prints the settings."
        )
    found = ", ".join(f"{name} from {source}" for name, source in given.items()) or "all default"
    if disabled():
        advice = "Unset KVARTER_DISABLE to turn Kvarter on."
        return Finding(
            "settings", Level.NOTE, f"KVARTER_DISABLE turns everything off; {found}", advice, given
        )
    return Finding("settings", Level.OK, found, data=given)
