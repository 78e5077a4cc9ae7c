"""The audit of what shares prefixes: look-ups, publications and merges, pins, new weights.

The other half of `audit.Auditor`, and under the same claim: a line costs what the line says, and what it accepts is
what the spec's operations accept. A row is never looked at from its first block on again: `Tracked.settled` says how
many of its blocks are published, and while it holds them they stay so.

What is *written* is worked out here alone: a sequence's launches in flight write the last positions that it has
launched, since they are ordered, and what it had of its parent's in flight at a fork is remembered from then on.
"""

from collections.abc import Sequence

from .alphabet import Clear, Pin, Publish, Unpin
from .audit_blocks import Blocks
from .audit_launches import Launches
from .audit_sequences import Tracked, Writes, known_batch, refused
from .outcome import Merge, Outcome, Telling
from .refusals import Broken, Reason
from .sharing import RETENTIONS
from .state import Block, Config, Handle, Name, Tokens


class PrefixAuditor:
    """One state of what is shared, taken further by an `Auditor`."""

    config: Config
    sequences: dict[Name, Tracked]
    launches: Launches
    blocks: Blocks
    pins: dict[Handle, tuple[Block, ...]]
    weights: int
    # Whether a row has ever been pointed at another block: then forks may differ in their first blocks.
    have_merged: bool

    def step_sharing(self, operation: Publish | Pin | Unpin | Clear, outcome: Outcome) -> None:
        """Take an operation that was done, with what was decided in it. Errors: `Broken`."""
        match operation:
            case Publish(rows, retention):
                self._publish(rows, retention, outcome)
            case Pin(handle, tokens, salt):
                self._pin(handle, tokens, salt, outcome)
            case Unpin(handle):
                self._unpin(handle, outcome)
            case Clear():
                self._clear(outcome)

    def look_up(self, tokens: Sequence[int], salt: int, most: int, outcome: Outcome) -> None:
        """Compare what was hit with what is to be found, and hold it. O(tokens)."""
        chain = tuple(self.blocks.prefixes.chain(salt, tokens))
        if outcome.hits != chain[:most]:
            said = f"hits {list(outcome.hits[:8])}, and {list(chain[:8])} are published, at most {most} to be taken"
            raise Broken("R-HASH-1" if outcome.hits != chain[: len(outcome.hits)] else "R-HASH-5", said)
        for block in outcome.hits:
            self.blocks.hold(block)

    def _publish(self, rows: Telling, retention: int, outcome: Outcome) -> None:
        """Let sequences learn ids, and publish or merge what is full, known and written."""
        known_batch(self.sequences, [(name, len(tokens)) for name, tokens in rows])
        for name, tokens in rows:
            sequence = self.sequences[name]
            if len(sequence.known) + len(tokens) > sequence.allocated:
                refused(Reason.BAD_COUNT, f"sequence {name} is told more ids than it has positions without")
        if retention not in RETENTIONS:
            refused(Reason.BAD_COUNT, f"there is no retention class {retention}")
        published: list[Block] = []
        merges: list[Merge] = []
        for name, tokens in rows:
            self.sequences[name].known += tokens
            self._publish_row(name, retention, published, merges)
        if outcome.published != tuple(published):
            early = not set(outcome.published) <= set(published)
            said = f"published {list(outcome.published[:8])}, not {published[:8]}"
            raise Broken("R-HASH-4" if early else "R-HASH-3", said)
        if outcome.merges != tuple(merges):
            raise Broken("R-EVICT-3", f"merged {list(outcome.merges[:4])}, not {merges[:4]}")
        for merge in merges:
            self._let_go_of_duplicate(merge)
        self.blocks.discharge(outcome.freed)

    def _pin(self, handle: Handle, tokens: Tokens, salt: int, outcome: Outcome) -> None:
        """Let a pin hold what is published for its tokens."""
        if handle in self.pins:
            refused(Reason.DUPLICATE, f"pin {handle} is in use")
        if not any(self.blocks.prefixes.chain(salt, tokens)):
            refused(Reason.EMPTY, f"nothing is published for the tokens of pin {handle}")
        self.look_up(tokens, salt, len(tokens), outcome)
        self.pins[handle] = outcome.hits

    def _unpin(self, handle: Handle, outcome: Outcome) -> None:
        """Let a pin go."""
        if handle not in self.pins:
            refused(Reason.UNKNOWN, f"there is no pin {handle}")
        self.blocks.drop(self.pins.pop(handle), (), 0)
        self.blocks.discharge(outcome.freed)

    def _clear(self, outcome: Outcome) -> None:
        """Forget what is published."""
        for pinned in self.pins.values():
            self.blocks.drop(pinned, (), 0)
        self.pins.clear()
        self.weights += 1
        self.blocks.clear()
        self.blocks.discharge(outcome.freed)

    def pending(self, name: Name) -> Writes:
        """Return the launches in flight that write positions of a sequence, oldest first. O(launches in flight)."""
        sequence, flights = self.sequences[name], self.launches.in_flight
        start, own = sequence.launched, []
        for launch, flight in reversed(flights.items()):
            if launch <= sequence.begun:
                break
            if name in flight.rows:
                start -= flight.rows[name]
                own.append((launch, start))
        return (*[write for write in sequence.inherited if write[0] in flights], *reversed(own))

    def _publish_row(self, name: Name, retention: int, published: list[Block], merges: list[Merge]) -> None:
        """Publish or merge the next blocks of a row, as far as they are full, known and written."""
        sequence, size, prefixes = self.sequences[name], self.config.block_size, self.blocks.prefixes
        if sequence.weights != self.weights:
            return
        written = min([start for _, start in self.pending(name)], default=sequence.launched)
        for index in range(sequence.settled, min(len(sequence.known), written) // size):
            own, parent = sequence.row[index], sequence.row[index - 1] if index else 0
            tokens = sequence.known[index * size : (index + 1) * size]
            found = prefixes.find(parent, sequence.salt, tokens)
            if own in prefixes.nodes:
                pass
            elif found:
                merges.append(Merge(name, index, own, found))
                self.blocks.hold(found)
                sequence.row[index] = found
                sequence.unread.add(found)
                self.have_merged = True
            elif self._has_two_parents(sequence, index):
                break
            else:
                prefixes.publish(own, parent, sequence.salt, tokens, retention)
                published.append(own)
            sequence.settled = index + 1

    def _has_two_parents(self, sequence: Tracked, index: int) -> bool:
        """Whether another sequence has a block, or is to copy it, behind another one. O(1), unless rows have merged."""
        own = sequence.row[index]
        if not (index and self.have_merged) or (self.blocks.holders[own] == 1 and own not in self.blocks.readers):
            return False
        parent = sequence.row[index - 1]
        for other in self.sequences.values():
            has_it = other.row[index : index + 1] == [own] or (other.copy and other.copy.source == own)
            if has_it and other.row[index - 1] != parent:
                return True
        return False

    def _let_go_of_duplicate(self, merge: Merge) -> None:
        """Drop the edge of a row to the block that it was pointed away from; launches of its may still read it."""
        self.blocks.drop([merge.old], (), self.sequences[merge.sequence].newest)
