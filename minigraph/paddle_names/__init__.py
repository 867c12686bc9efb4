"""Names of Paddle that are not here: each says what it is, why it is not here and what to use instead."""

from .missing import NotHere, NotHereToImport, explain_missing, is_listed, refusal
from .status import Entry, entries

__all__ = ["Entry", "NotHere", "NotHereToImport", "entries", "explain_missing", "is_listed", "refusal"]
