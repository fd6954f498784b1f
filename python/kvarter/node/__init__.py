"""The node: the one owner of pool, index and ledger on a host, inside an engine or as `kvarter serve`; how workers
attach to it, and how schedulers in other processes ask it."""

from .attach import Attachment, Invitation, embed, invitation
from .home import Home, home, invited
from .remote import RemoteStore
from .serving import Node

__all__ = [
    "Attachment",
    "Home",
    "Invitation",
    "Node",
    "RemoteStore",
    "embed",
    "home",
    "invitation",
    "invited",
]
