"""Which run is in force at each place of a turn. Pure.

The keeper numbers runs, each greater than all before. A pass over the whole tree is a run of the root, and it
is in force everywhere. When the process of one node is lost, its place alone gets a new run; that is in force
there and below, and nowhere else:

    0        5
    0.1      5          restart of 0.1  ──►  8
    0.1.0    5                               8
    0.2      5                               5

The run in force at a place is the newest that was given for the place or one around it. Whatever acts in the
name of another run is what is left of a lost process, and counts for nothing.
"""

import msgspec

from mesh.core.places import ROOT, Place


class GivenRun(msgspec.Struct, frozen=True):
    """A run. ``after`` is the last event that was journaled before it began: it knows all up to that one."""

    number: int
    after: int = 0


class Runs:
    """The runs of one turn. Numbers have to be given in their order."""

    def __init__(self) -> None:
        self._newest = {ROOT.text: GivenRun(0)}

    @property
    def of_pass(self) -> GivenRun:
        """The run of the root: the newest pass over the whole tree."""
        return self._newest[ROOT.text]

    def begin_pass(self, run: GivenRun) -> None:
        """A run of the whole tree; with it, all others end."""
        self._newest = {ROOT.text: run}

    def restart(self, place: Place, run: GivenRun) -> None:
        """A run of the node at a place and of all below it; with it, the runs that were given there end."""
        self._newest[place.text] = run

    def at(self, place: Place) -> GivenRun:
        """The run in force at a place."""
        given = (self._newest.get(each.text) for each in place.scopes)
        return max((run for run in given if run is not None), key=lambda run: run.number, default=GivenRun(0))

    def is_in_force(self, number: int, place: Place) -> bool:
        """Whether this is the number of the run in force at a place."""
        return self.at(place).number == number
