"""What holds for every test: Ctrl-C can be tried, whoever started the tests; no folder of ours passes for a package.

A shell that starts a job in the background without job control has it ignore SIGINT, and what is ignored stays
ignored in all that the job starts. The tests that interrupt a command would then wait for one that never hears of it.

`python -m pytest` puts the checkout itself on the path. Then whoever looks for a package called `kernels`, as
transformers does, finds our folder.
"""

import signal
import sys
from pathlib import Path

from checkout import ROOT

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path[:] = [place for place in sys.path if Path(place).resolve() != ROOT]
