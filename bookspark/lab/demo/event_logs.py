"""Spark's event logs as an input that grows during its ingestion.

Law: only complete lines are staged, each line once. A staged file appears whole, by a rename into Spark's watched folder.
Spark appends to its event logs and drops ``.inprogress`` from their names at the end, so the staged position is kept by the
name without it.
"""

from __future__ import annotations

import threading
from pathlib import Path

_IN_PROGRESS = ".inprogress"
_READ_BYTES_MAX = 64 << 20
_INTERVAL_SECONDS = 1.0


class EventLogStager:
    """Makes a file in ``destination`` every second from the new lines of the event logs in ``source``. Files are
    written in ``temporary``, on the same file system."""

    def __init__(self, source: Path, destination: Path, temporary: Path) -> None:
        self._source = source
        self._destination = destination
        self._temporary = temporary
        self._positions: dict[str, int] = {}
        self._staged: list[Path] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event log stager", daemon=True)
        self._error: Exception | None = None

    @property
    def files(self) -> list[Path]:
        return list(self._staged)

    def start(self) -> None:
        """Stage in a thread from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop staging. Raises the error of a failed staging. May be called again."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def stage(self) -> None:
        for log in sorted(self._source.iterdir()):
            name = log.name.removesuffix(_IN_PROGRESS)
            position = self._positions.get(name, 0)
            try:
                with log.open("rb") as file:
                    file.seek(position)
                    data = file.read(_READ_BYTES_MAX)
            except FileNotFoundError:
                # Spark renamed the file at this moment. The next call sees its new name.
                continue
            complete = data[: data.rfind(b"\n") + 1]
            if not complete:
                continue
            draft = self._temporary / f"{len(self._staged):06d}.part"
            draft.write_bytes(complete)
            self._staged.append(draft.rename(self._destination / f"{len(self._staged):06d}-{name}.jsonl"))
            self._positions[name] = position + len(complete)

    def _run(self) -> None:
        try:
            while not self._ending.wait(_INTERVAL_SECONDS):
                self.stage()
        except Exception as error:
            self._error = error
