"""The ownership core of a paged KV cache as relations: small enough to be proved for any number of anything.

The exhaustive driver tries every state of a small world; it cannot say that a fourth block or a fifth launch adds
nothing. This file can. It keeps of a cache only *which block stands in what relation to whom*,

    free(block) · quarantined(block) · owns(sequence, block) · writes(sequence, block) · copies(sequence, block)
    · touches(launch, block)

where `writes` means that planned positions of the sequence lie in the block, `copies` that a planned copy of the
sequence has it for its source, and `touches` that a launch in flight reads or writes it. Each operation is a formula
over the relations before and after; what is chosen (blocks taken, blocks freed) is left open between its bounds. If
every operation leads from the invariant to the invariant, then it holds in all reachable states, however many blocks,
sequences and launches there are.

Not here, since counting and order are what makes proofs hard: lengths, extents of copies, fences, happens-before, and
that blocks become free *in time* (R-LIFE-4). Those are the exhaustive driver's. The method is the inductive invariant
over uninterpreted sorts (Padon et al., "Ivy: safety verification by interactive generalization", PLDI 2016);
quantifiers alternate from Block to Sequence and to Launch alone, so z3 always decides.

`Ownership` is right; each class at the end is wrong in one sentence.
"""

from typing import Any, NamedTuple

from relational_logic import Property, Relation, Truth, Universe

BLOCK, SEQUENCE, LAUNCH = "block", "sequence", "launch"
SIGNATURE = {
    "free": (BLOCK,),
    "quarantined": (BLOCK,),
    "owns": (SEQUENCE, BLOCK),
    "writes": (SEQUENCE, BLOCK),
    "copies": (SEQUENCE, BLOCK),
    "touches": (LAUNCH, BLOCK),
}


class Relations(NamedTuple):
    """One moment: who stands in which relation to which block."""

    free: Relation
    quarantined: Relation
    owns: Relation
    writes: Relation
    copies: Relation
    touches: Relation


class Ownership:
    """The invariant and the operations, as formulas in a universe."""

    def __init__(self, universe: Universe) -> None:
        self.every, self.some, self.no = universe.every, universe.some, universe.no

    # ---- words

    def edges(self, kind: str, holds: Relation) -> Truth:
        """It holds of every thing of a kind and every block."""
        return self.every(kind, lambda one: self.every(BLOCK, lambda block: holds(one, block)))

    def held(self, now: Relations, block: Any) -> Truth:
        """Some sequence holds the block."""
        return self.some(SEQUENCE, lambda sequence: now.owns(sequence, block))

    def held_alone(self, now: Relations, sequence: Any, block: Any) -> Truth:
        """The sequence holds the block and no other does."""
        others = self.some(SEQUENCE, lambda other: now.owns(other, block) & self.no(other == sequence))
        return now.owns(sequence, block) & self.no(others)

    def in_flight(self, now: Relations, block: Any) -> Truth:
        """Some launch in flight may touch the block."""
        return self.some(LAUNCH, lambda launch: now.touches(launch, block))

    def to_be_copied(self, now: Relations, block: Any) -> Truth:
        """Some planned copy will read the block."""
        return self.some(SEQUENCE, lambda sequence: now.copies(sequence, block))

    def same(self, old: Relations, new: Relations, *names: str) -> Truth:
        """The named relations do not change."""

        def unchanged(name: str) -> Truth:
            before, after = getattr(old, name), getattr(new, name)
            kind = SIGNATURE[name][0]
            if kind == BLOCK:
                return self.every(BLOCK, lambda block: after(block) == before(block))
            return self.edges(kind, lambda one, block: after(one, block) == before(one, block))

        truth, *others = map(unchanged, names)
        for other in others:
            truth &= other
        return truth

    # ---- the invariant

    def one_state(self, now: Relations) -> Truth:
        """Every block is free, or held, or quarantined, and in one way alone (R-OWN-1)."""

        def right(block: Any) -> Truth:
            free, quarantined, held = now.free(block), now.quarantined(block), self.held(now, block)
            return (free | quarantined | held) & self.no((free & quarantined) | (free & held) | (quarantined & held))

        return self.every(BLOCK, right)

    def free_is_untouched(self, now: Relations) -> Truth:
        """No free block is touched by a launch in flight (R-LIFE-1) or read by a planned copy (R-LIFE-8)."""
        return self.every(
            BLOCK,
            lambda block: self.no(now.free(block) & (self.in_flight(now, block) | self.to_be_copied(now, block))),
        )

    def sole_writer(self, now: Relations) -> Truth:
        """What a sequence is about to write, it holds alone (R-COW-1)."""
        return self.edges(
            SEQUENCE, lambda one, block: self.no(now.writes(one, block)) | self.held_alone(now, one, block)
        )

    def invariant(self, now: Relations) -> Truth:
        """What holds in every reachable state."""
        return self.one_state(now) & self.free_is_untouched(now) & self.sole_writer(now)

    def empty(self, now: Relations) -> Truth:
        """The beginning: every block is free, and there is nothing else."""

        def unused(block: Any) -> Truth:
            written = self.some(SEQUENCE, lambda one: now.writes(one, block))
            used = now.quarantined(block) | self.held(now, block) | written
            return now.free(block) & self.no(used | self.in_flight(now, block) | self.to_be_copied(now, block))

        return self.every(BLOCK, unused)

    # ---- what an operation may choose

    def takeable(self, old: Relations, block: Any) -> Truth:
        """A block that may be taken."""
        return old.free(block)

    def writable(self, new: Relations, sequence: Any, block: Any) -> Truth:
        """A block that may be written in place: its sequence is the last holder."""
        return self.held_alone(new, sequence, block)

    def copyable(self, new: Relations, block: Any) -> Truth:
        """A block that may be copied: others keep it, as the last holder writes in place (R-COW-2)."""
        return self.held(new, block)

    def forkable(self, old: Relations, parent: Any, block: Any) -> Truth:
        """A block that may be shared with a child: the parent is not about to write or to copy it."""
        return self.no(old.writes(parent, block) | old.copies(parent, block))

    def freeable(self, new: Relations, block: Any) -> Truth:
        """A block without holder that may become free: nothing touches it any more."""
        return self.no(self.in_flight(new, block) | self.to_be_copied(new, block))

    def left_alone(self, old: Relations, new: Relations, leaving: Any, block: Any) -> Truth:
        """A block that the release of a sequence leaves without holder."""
        return old.owns(leaving, block) & self.no(self.held(new, block))

    def waiting(self, old: Relations, leaves: Property, block: Any) -> Truth:  # noqa: ARG002  (a wrong one asks)
        """A block that waits when launches leave."""
        return old.quarantined(block)

    # ---- the operations: what was chosen is unknown in a proof, and read off a real transition

    def grow(self, old: Relations, new: Relations, takes: Relation, copied: Relation, tails: Relation) -> Truth:
        """`add`, `extend`: a batch takes free blocks, copies shared tails and writes on in tails of its own."""

        def block_rule(block: Any) -> Truth:
            taken = self.some(SEQUENCE, lambda one: takes(one, block))
            is_copied = self.some(SEQUENCE, lambda one: copied(one, block))
            return (
                (self.no(taken) | self.takeable(old, block))
                & (self.no(is_copied) | self.copyable(new, block))
                & (new.free(block) == (old.free(block) & self.no(taken)))
            )

        def edge_rule(one: Any, block: Any) -> Truth:
            twice = self.some(SEQUENCE, lambda other: takes(other, block) & self.no(other == one))
            kept = old.owns(one, block) & self.no(copied(one, block))
            return (
                self.no(takes(one, block) & twice)
                & (self.no(copied(one, block)) | old.owns(one, block))
                & (self.no(tails(one, block)) | self.writable(new, one, block))
                & (new.owns(one, block) == (kept | takes(one, block)))
                & (new.copies(one, block) == (old.copies(one, block) | copied(one, block)))
                & (new.writes(one, block) == (old.writes(one, block) | takes(one, block) | tails(one, block)))
            )

        unchanged = self.same(old, new, "quarantined", "touches")
        return self.every(BLOCK, block_rule) & self.edges(SEQUENCE, edge_rule) & unchanged

    def fork(self, old: Relations, new: Relations, parent: Any, child: Any) -> Truth:
        """`fork`: the child is new and holds what its parent holds; the parent has nothing planned."""

        def block_rule(block: Any) -> Truth:
            known = old.owns(child, block) | old.writes(child, block) | old.copies(child, block)
            return self.no(known) & (self.no(old.owns(parent, block)) | self.forkable(old, parent, block))

        def edge_rule(one: Any, block: Any) -> Truth:
            inherited = (one == child) & old.owns(parent, block)
            return new.owns(one, block) == (old.owns(one, block) | inherited)

        unchanged = self.same(old, new, "free", "quarantined", "writes", "copies", "touches")
        return self.every(BLOCK, block_rule) & self.edges(SEQUENCE, edge_rule) & unchanged

    def launch(
        self, old: Relations, new: Relations, launched: Any, batch: Property, touched: Property, left: Relation
    ) -> Truth:
        """`launch`: it touches blocks of its batch and its copies' sources; what is `left` stays to be written."""

        def block_rule(block: Any) -> Truth:
            theirs = self.some(SEQUENCE, lambda one: batch(one) & (old.owns(one, block) | old.copies(one, block)))
            copied = self.some(SEQUENCE, lambda one: batch(one) & old.copies(one, block))
            fresh = self.no(old.touches(launched, block))
            return fresh & (self.no(touched(block)) | theirs) & (self.no(copied) | touched(block))

        def flight_rule(one: Any, block: Any) -> Truth:
            return new.touches(one, block) == (old.touches(one, block) | ((one == launched) & touched(block)))

        def plan_rule(one: Any, block: Any) -> Truth:
            stays = self.no(batch(one)) | left(one, block)
            return (new.writes(one, block) == (old.writes(one, block) & stays)) & (
                new.copies(one, block) == (old.copies(one, block) & self.no(batch(one)))
            )

        rules = self.every(BLOCK, block_rule) & self.edges(LAUNCH, flight_rule) & self.edges(SEQUENCE, plan_rule)
        return rules & self.same(old, new, "free", "quarantined", "owns")

    def execute(self, old: Relations, new: Relations) -> Truth:
        """`execute`: contents change, and nothing here."""
        return self.same(old, new, *SIGNATURE)

    def retire(self, old: Relations, new: Relations, leaves: Property, freed: Property) -> Truth:
        """`retire`: launches leave, one and all that happen before it, and quarantined blocks may become free."""

        def flight_rule(one: Any, block: Any) -> Truth:
            return new.touches(one, block) == (old.touches(one, block) & self.no(leaves(one)))

        discharged = self._discharge(old, new, lambda block: self.waiting(old, leaves, block), freed)
        return self.edges(LAUNCH, flight_rule) & discharged & self.same(old, new, "owns", "writes", "copies")

    def release(self, old: Relations, new: Relations, leaving: Any, freed: Property) -> Truth:
        """`release`: a sequence drops its edges and its plan; what nobody else holds waits, or becomes free."""

        def edge_rule(one: Any, block: Any) -> Truth:
            stays = self.no(one == leaving)
            return (
                (new.owns(one, block) == (old.owns(one, block) & stays))
                & (new.writes(one, block) == (old.writes(one, block) & stays))
                & (new.copies(one, block) == (old.copies(one, block) & stays))
            )

        def waits(block: Any) -> Truth:
            return old.quarantined(block) | self.left_alone(old, new, leaving, block)

        discharged = self._discharge(old, new, waits, freed)
        return self.edges(SEQUENCE, edge_rule) & discharged & self.same(old, new, "touches")

    def _discharge(self, old: Relations, new: Relations, waits: Property, freed: Property) -> Truth:
        """Of the blocks that wait, those that may become free; which ones do is a choice."""

        def block_rule(block: Any) -> Truth:
            return (
                (self.no(freed(block)) | (waits(block) & self.freeable(new, block)))
                & (new.free(block) == (old.free(block) | freed(block)))
                & (new.quarantined(block) == (waits(block) & self.no(freed(block))))
            )

        return self.every(BLOCK, block_rule)


# ---- wrong in one sentence each ---------------------------------------------------------------------------------


class ReuseInFlight(Ownership):
    """A block becomes free though a launch in flight may touch it."""

    def freeable(self, new: Relations, block: Any) -> Truth:
        """Ask planned copies alone."""
        return self.no(self.to_be_copied(new, block))


class ReusePlannedSource(Ownership):
    """A block becomes free though a planned copy will read it."""

    def freeable(self, new: Relations, block: Any) -> Truth:
        """Ask launches alone."""
        return self.no(self.in_flight(new, block))


class ReleaseWhatOthersHold(Ownership):
    """A released sequence takes its blocks with it, whoever else holds them."""

    def left_alone(self, old: Relations, new: Relations, leaving: Any, block: Any) -> Truth:  # noqa: ARG002  (the signature is the protocol's)
        """Ask nobody."""
        return old.owns(leaving, block)


class ForgetAtRelease(Ownership):
    """A released sequence's blocks go nowhere: a leak."""

    def left_alone(self, old: Relations, new: Relations, leaving: Any, block: Any) -> Truth:  # noqa: ARG002  (the signature is the protocol's)
        """Let nothing wait that does not wait already."""
        return old.quarantined(block)


class LateCompletionFrees(Ownership):
    """A completion frees what its launch touched, whoever holds it by now."""

    def waiting(self, old: Relations, leaves: Property, block: Any) -> Truth:
        """Ask the launch that leaves."""
        return old.quarantined(block) | self.some(LAUNCH, lambda one: leaves(one) & old.touches(one, block))


class TakeQuarantined(Ownership):
    """Quarantined blocks are taken for free capacity."""

    def takeable(self, old: Relations, block: Any) -> Truth:
        """Ask whether somebody holds it."""
        return old.free(block) | old.quarantined(block)


class TakeHeld(Ownership):
    """A block is handed out that somebody holds."""

    def takeable(self, old: Relations, block: Any) -> Truth:
        """Ask whether it waits."""
        return self.no(old.quarantined(block))


class LastHolderCopies(Ownership):
    """The last holder of a block copies it, and leaves the source to nobody."""

    def copyable(self, new: Relations, block: Any) -> Truth:
        """Ask nobody: each block holds or does not."""
        return self.held(new, block) | self.no(self.held(new, block))


class WriteShared(Ownership):
    """A shared tail is written in place: no copy-on-write."""

    def writable(self, new: Relations, sequence: Any, block: Any) -> Truth:
        """Ask whether the sequence holds it."""
        return new.owns(sequence, block)


class ForkPlanned(Ownership):
    """A sequence with planned positions is forked."""

    def forkable(self, old: Relations, parent: Any, block: Any) -> Truth:
        """Ask nothing: the parent's block is shared or is not its block."""
        return old.owns(parent, block) | self.no(old.owns(parent, block))
