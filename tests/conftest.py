"""What holds for every test: Ctrl-C can be tried, whoever started the tests.

A shell that starts a job in the background without job control has it ignore SIGINT, and what is ignored stays
ignored in all that the job starts. The tests that interrupt a command would then wait for one that never hears of it.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
