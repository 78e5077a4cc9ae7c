"""What can be known of a stranger's requests from outside: their tokens to the end, and how far each has come.

The model is greedy: the next token is a function of all before, so a request's whole text is known when it is
submitted, and it does not matter for contents whether a scheduler keeps a token that was sampled behind its back (by a
row that was in flight when the request was preempted) or samples it again. Both are right, and engines differ. So a
request has tokens that were surely taken, and at most so many; what a row may compute and sample lies between them.

A request's *life* begins with its first row and with the first after a preemption. Nothing is kept from one to the
next but tokens.
"""

from typing import NamedTuple

from .counts import counted
from .foreign_scheduler import STOP, Row
from .refusals import Broken
from .requests import Request, Token
from .state import Block, Content, LaunchId, Tokens

_OWN_IDS = 1000  # a prompt given as a number has token ids of its own from here on


def prompt_of(request: Request) -> Tokens:
    """Return the prompt's token ids: those given, or as many that no other request has."""
    if isinstance(request.prompt, int):
        first = _OWN_IDS * (request.id + 1)
        return tuple(range(first, first + request.prompt))
    return request.prompt


def text_of(request: Request, beyond: int, *, stops: bool) -> Tokens:
    """Return a request's tokens to the last one that it may sample, and some `beyond`, as the model gives them."""
    tokens = prompt_of(request)
    for _ in range(request.outputs + beyond):
        tokens = (*tokens, next_token(tokens, stops=stops))
    return tokens


def next_token(tokens: Tokens, *, stops: bool) -> Token:
    """Return what the model samples after these: 0 or 1, or now and then `STOP`."""
    drawn = (7 * sum(tokens) + 5 * len(tokens)) % 23
    return STOP if stops and drawn == 1 else drawn % 2


class Taking(NamedTuple):
    """A row in flight, as far as its completion is concerned."""

    life: int  # of its request, at the launch
    token: int  # the place of the token that it samples; 0: none


class Served:
    """A live request."""

    def __init__(self, request: Request, tokens: Tokens, text: tuple[Content, ...]) -> None:
        self.request = request
        self.tokens = tokens
        self.text = text  # the content of each position
        end = request.prompt_length + request.outputs
        stops = [at for at in range(request.prompt_length, end) if tokens[at] == STOP]
        self.end = stops[0] + 1 if stops else end  # how many tokens it has when it is finished
        self.taken = request.prompt_length  # tokens that its scheduler surely has
        self.at_most = self.taken  # and may have
        self.pending = 0  # being sampled by rows of this life
        self.life = 0
        self.preempted = False  # at any time
        self.computed = 0  # positions that rows of this life compute, or begin behind
        self.row: tuple[Block, ...] = ()  # as it was last seen
        self.seen: LaunchId = 0  # when that was, 0: not in this life
        self.seen_to = 0  # how many positions were computed then

    @property
    def blames(self) -> str:
        """The rule that is broken where its tokens are miscounted."""
        return "R-PRE-1" if self.preempted else "R-LIFE-7"

    def preempt(self) -> None:
        """All that it had goes, but for its tokens."""
        self.life += 1
        self.preempted = True
        self.pending = self.computed = self.seen = 0
        self.row = ()

    def begin_row(self, row: Row) -> Taking:
        """Take a row as the next of this life; return what its completion brings. Errors: `Broken`."""
        stop = row.start + row.length
        who = f"request {row.request} computes positions {row.start} to {stop - 1}"
        if row.length < 1 or row.start < 0:
            raise Broken(
                "R-HASH-5", f"request {row.request} has a row of {counted(row.length, 'position')} from {row.start} on"
            )
        if row.start < self.computed:  # it was preempted, though nobody said so
            self.preempt()
        sure = self.taken + self.pending
        if stop > max(sure, self.at_most):
            raise Broken(
                self.blames, f"{who} and has {counted(max(sure, self.at_most), 'token')}, those in flight included"
            )
        if row.samples and stop < sure:
            raise Broken(
                self.blames, f"{who} and samples token {stop} again: {counted(self.taken, 'token')} known by now"
            )
        self.computed = stop
        if not row.samples:
            return Taking(self.life, 0)
        self.pending += 1
        self.taken = stop - self.pending + 1  # it counts what was sampled behind its back, or has dropped it
        return Taking(self.life, stop)

    def take(self, taking: Taking) -> None:
        """A token has come: for the life that it was sampled for, or for nobody in particular."""
        if taking.life == self.life:
            self.pending -= 1
            self.taken += 1
        self.at_most = max(self.at_most, self.taken, taking.token + 1)
