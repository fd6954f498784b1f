"""The node: the one owner of pool, index and ledger on a host, inside an engine or as `kvarter serve`; how workers
attach to it, and how schedulers in other processes ask it."""

from .attach import Attachment, Invitation, embed, invitation
from .home import Home, home, invited
from .keep import KeptAttachment
from .remote import RemoteStore
from .serving import Node

__all__ = [
    "Attachment",
    "Home",
    "Invitation",
    "KeptAttachment",
    "Node",
    "RemoteStore",
    "embed",
    "home",
    "invitation",
    "invited",
]
