"""The fixture ``record`` for all modules of the folder."""

from tests.recording import record

__all__ = ["record"]
