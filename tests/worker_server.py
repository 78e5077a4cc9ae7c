"""What the workers of the tests serve: importable by its plain name in any process, as a test's own module is not."""

import os
import time

from pagedkv.spec.refusals import Broken


class Server:
    """What a worker does on demand."""

    def __init__(self, number: int) -> None:
        self.number = number

    def add(self, more: int) -> int:
        self.number += more
        return self.number

    def fail(self) -> None:
        raise LookupError(self.number)

    def judge(self) -> None:
        raise Broken("R-DATA", "over there")

    def die(self) -> None:
        os._exit(7)

    def wait(self) -> None:
        time.sleep(1000)

    def who(self) -> int:
        return os.getpid()
