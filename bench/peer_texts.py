"""What adapters of managers with a prefix cache have in common: each token of each sequence has an id.

The protocol leaves ids open: of some sequences none is told, of positions that were extended none until `publish`. An
engine always knows them, since it has sampled them, and finds prefixes by them. So ids that nobody told are made up,
different from all others, and replaced when the true ones come. What is told and launched can be found from then on:
`settle` is called for it, which is what an engine does after a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagedkv.spec.manager import Block, Config, Manager, Name, Outcome, Rows, Telling, Tokens

_MADE_UP = 1_000_000  # ids that nobody told begin here; they fit into 32 bits


@dataclass(slots=True)
class Text:
    """The ids of a sequence."""

    ids: list[int]
    told: int  # how many of them are true, from the first
    launched: int  # how many positions launches have written, or hits have brought
    settled: int  # how many can be found

    def copy(self) -> "Text":
        """Return the same for a fork."""
        return replace(self, ids=[*self.ids])


class TextManager(Manager):
    """A `Manager` whose sequences have ids. Give `begin` and `settle`, besides what every adapter gives."""

    first_block = 0
    shares_prefixes = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.texts: dict[Name, Text] = {}
        self.made_up = _MADE_UP
        self.own_calls: list[str] = []

    def begin(self, name: Name, ids: list[int]) -> Sequence[Block]:
        """Allocate a sequence; return the blocks that it begins with because they were found."""
        raise NotImplementedError

    def settle(self, name: Name, text: Text, length: int) -> None:
        """Let what holds the first positions of a sequence, up to this length, be found."""
        raise NotImplementedError

    def make_up(self, count: int) -> list[int]:
        """Return ids that no other token has."""
        self.made_up += count
        return [*range(self.made_up - count, self.made_up)]

    def add(self, name: Name, count: int) -> Outcome:
        """Begin a sequence whose ids nobody knows."""
        return self.add_prompt(name, count, 0)

    def add_prompt(self, name: Name, tokens: int | Tokens, salt: int) -> Outcome:  # noqa: ARG002  (no adapter has any)
        """Begin a sequence."""
        ids = self.make_up(tokens) if isinstance(tokens, int) else [*tokens]
        hits = self.begin(name, ids)
        start = len(hits) * self.config.block_size
        self.texts[name] = Text(ids, 0 if isinstance(tokens, int) else len(ids), start, start)
        return Outcome(hits=tuple(hits))

    def publish(self, rows: Telling, retention: int) -> None:  # noqa: ARG002  (no adapter has any)
        """Put true ids in place of those made up, and let what is launched be found by them."""
        for name, tokens in rows:
            text = self.texts[name]
            text.ids[text.told : text.told + len(tokens)] = tokens
            text.told += len(tokens)
            length = min(text.told, text.launched)
            if length > text.settled:
                self.settle(name, text, length)
                text.settled = length

    def launch(self, rows: Rows, stream: int) -> None:  # noqa: ARG002  (there is one)
        """Note how far each sequence has come."""
        for name, count in rows:
            self.texts[name].launched += count
