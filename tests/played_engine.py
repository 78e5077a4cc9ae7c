"""An engine of the policy, played by hand: what the tests of scheduling begin with.

Blocks of two slots throughout. Requests are numbered as they are submitted, and so are their sequences.
"""

from typing import Any

import pytest
from pagedkv.spec.refusals import Reason, Refused
from pagedkv.spec.requests import Engine, Limits, Request, Sample
from pagedkv.spec.scheduler_alphabet import FUNCTIONS
from pagedkv.spec.serving import start
from pagedkv.spec.state import Config
from pagedkv.spec.turn import Decision, Plan


class Played:
    """An engine, and what has been decided last."""

    def __init__(self, blocks: int, limits: Limits, *requests: Request) -> None:
        self.engine: Engine = start(Config(blocks, 2, launches=2), limits)
        self.decided = Decision()
        for request in requests:
            self.play("submit", request)

    def play(self, word: str, *arguments: Any) -> "Played":
        """Do an operation."""
        self.engine, self.decided = FUNCTIONS[word](self.engine, *arguments)
        return self

    def plan(self) -> Plan:
        """Schedule, and return the plan."""
        return self.play("schedule").decided.plan

    def complete(self, *tokens: int, stopped: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Complete the oldest launch; return who has finished."""
        return self.play("complete", self.engine.flights[0].launch, tokens, stopped).decided.finished

    def sample(self, name: int) -> Sample:
        """Return what is known of a sample."""
        return self.engine.owner(name).samples[name]


def refused(reason: Reason, engine: Engine, word: str, *arguments: Any) -> None:
    """See that an operation is refused."""
    with pytest.raises(Refused) as refusal:
        FUNCTIONS[word](engine, *arguments)
    assert refusal.value.reason is reason


WIDE = Limits(max_tokens_per_step=16, max_running=8)
AHEAD = WIDE._replace(steps_ahead=2)
