"""Why an operation was refused.

A refusal is an answer, not an accident: the operation's guard did not hold, nothing was changed, and the class
names the reason. The names are those of the spec's table of operations, so that a refusal on one side can be
compared with a refusal on the other. `InvalidArgument` stands outside that table: what it rejects (a name that is no
64-bit integer, a stream that does not exist, an array of the wrong shape) the spec's types cannot even express.
"""


class Refused(Exception):  # noqa: N818  (a refusal, in the words of the spec; not every refusal is an error)
    """An operation's guard did not hold; nothing was changed. The subclass names the reason."""


class Duplicate(Refused):
    """The name of a sequence, or of a pin, is already in use; or it stands twice in one batch."""


class Unknown(Refused):
    """No live sequence, or pin, has this name."""


class Empty(Refused):
    """A sequence must start with at least one token, and a pin hold at least one block."""


class BadCount(Refused):
    """A count is below 1, more than is planned or allocated; or there is no such retention class."""


class TooLong(Refused):
    """The sequence would need more blocks than the whole pool has."""


class NoSpace(Refused):
    """Not enough blocks are available now; what waits for launches does not count."""


class Busy(Refused):
    """Not while it is at work: planned positions at a fork, the limit of launches in flight at a launch.

    Of a scheduler: a launch completes while an older one is in flight, or a request that waits is to be preempted.
    """


class UnknownLaunch(Refused):
    """No launch with this id was ever issued."""


class Draining(Refused):
    """The scheduler takes no request in any more."""


class InvalidArgument(Refused, ValueError):  # noqa: N818  (named like its siblings)
    """The argument is outside every type this interface accepts: wrong shape, dtype or range."""
