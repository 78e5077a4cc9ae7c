"""Why an operation was refused.

A refusal is an answer, not an accident: the operation's guard did not hold, nothing was changed, and the class
names the reason. The names are those of the spec's table of operations, so that a refusal on one side can be
compared with a refusal on the other. `InvalidArgument` stands outside that table: what it rejects (a name that is no
64-bit integer, a stream that does not exist, an array of the wrong shape) the spec's types cannot even express.
"""


class Refused(Exception):  # noqa: N818  (a refusal, in the words of the spec; not every refusal is an error)
    """An operation's guard did not hold; nothing was changed. The subclass names the reason."""


class Duplicate(Refused):
    """The sequence name is already in use, or stands twice in one batch."""


class Unknown(Refused):
    """No live sequence has this name."""


class Empty(Refused):
    """A sequence must start with at least one token."""


class BadCount(Refused):
    """A count is below 1, or more positions are launched than are planned."""


class TooLong(Refused):
    """The sequence would need more blocks than the whole pool has."""


class NoSpace(Refused):
    """Not enough blocks are available now; quarantined blocks do not count."""


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
