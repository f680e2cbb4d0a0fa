"""A simulated world moved by sentences, so that a scenario reads like its story.

Law: each line is the start of the sentence of exactly one move that is possible now, so a scenario can't claim a step that
the real machines don't take. Empty lines and lines with # are skipped.
"""

from __future__ import annotations

from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.story import sentence
from bookspark.lab.simulation.world import World


class Stage:
    """A world and its current state."""

    def __init__(self, options: SimulationOptions) -> None:
        self.world = World(options)
        self.state = self.world.initial
        self.told: list[str] = []

    def play(self, scenario: str) -> None:
        """Make the moves of the lines, one after the other."""
        for line in filter(None, (line.strip() for line in scenario.splitlines())):
            if not line.startswith("#"):
                self._make(line)

    def _make(self, line: str) -> None:
        sentences = {}
        for move in self.world.moves(self.state):
            after = self.world.apply(self.state, move)
            sentences[sentence(self.world, self.state, move, after)] = after
        fitting = [said for said in sentences if said.startswith(line)]
        assert len(fitting) == 1, f"{line!r} fits {len(fitting)} of:\n" + "\n".join(sorted(sentences))
        self.told += fitting
        self.state = sentences[fitting[0]]

    @property
    def view(self):
        return self.world.view(self.state)

    @property
    def violation(self):
        return self.world.violation(self.state)
