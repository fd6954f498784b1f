"""The node: the one owner of pool, index and ledger on a host, and how workers attach to it."""

from .attach import Attachment, Invitation, embed, invitation

__all__ = ["Attachment", "Invitation", "embed", "invitation"]
