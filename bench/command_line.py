"""The command line: which commands there are, and how each of them ends.

A command lives in a module of its own and is only wired up here. It returns where all held; everything else it raises,
and `run` turns that into one line on stderr and an exit code:

====================================================== ====
outcome                                                exit
====================================================== ====
all held                                               0
`Broken`: a rule was broken, a comparison failed       1
`BadInput`, a refusal, wrong usage, no memory, no file 2
Ctrl-C                                                 130
====================================================== ====

A command that has its own report of what is broken (a counterexample) prints it and raises `typer.Exit(1)`. Any
other exception is a fault of this program, and its traceback is what a report of that fault needs.
"""

import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from pagedkv.bench.baselines_command import BASELINES_EXAMPLE, baselines_command
from pagedkv.bench.code_version import code_version
from pagedkv.bench.compare_command import COMPARE_EXAMPLE, compare_command
from pagedkv.bench.explore_command import EXPLORE_EXAMPLE, explore_command
from pagedkv.bench.failures import BadInput
from pagedkv.bench.fuzz_command import FUZZ_EXAMPLE, fuzz_command
from pagedkv.bench.grid_command import GRID_EXAMPLE, grid_command
from pagedkv.bench.ledger_command import LEDGER_EXAMPLE, ledger_command
from pagedkv.bench.options import Invocation
from pagedkv.bench.peers_command import PEERS_EXAMPLE, peers_command
from pagedkv.bench.replay_command import REPLAY_EXAMPLE, replay_command
from pagedkv.bench.show_command import SHOW_EXAMPLE, show_command
from pagedkv.bench.sweep_command import SWEEP_EXAMPLE, sweep_command
from pagedkv.bench.verify_command import VERIFY_EXAMPLE, verify_command
from pagedkv.impl.invariants import CorruptState
from pagedkv.impl.refusals import Refused
from pagedkv.spec.quoting import one_line
from pagedkv.spec.refusals import Broken

EXIT_BROKEN = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

# Newer releases of typer carry a click of their own and do not export this class; its subclass they all export.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

application = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="The workbench of pagedkv, a formally tested paged KV-cache manager.",
)


def _tell_version(asked: bool) -> None:  # noqa: FBT001  (the signature is the library's)
    if asked:
        typer.echo(f"pagedkv {code_version()}")
        raise typer.Exit


@application.callback()
def workbench(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Say which code this is, and end.")
    ] = False,
) -> None:
    """Take what stands before the command."""


application.command("verify", epilog=VERIFY_EXAMPLE)(verify_command)
application.command("explore", epilog=EXPLORE_EXAMPLE)(explore_command)
application.command("fuzz", epilog=FUZZ_EXAMPLE)(fuzz_command)
application.command("compare", epilog=COMPARE_EXAMPLE)(compare_command)
application.command("replay", epilog=REPLAY_EXAMPLE)(replay_command)
application.command("baselines", epilog=BASELINES_EXAMPLE)(baselines_command)
application.command("grid", epilog=GRID_EXAMPLE)(grid_command)
application.command("sweep", epilog=SWEEP_EXAMPLE)(sweep_command)
application.command("ledger", epilog=LEDGER_EXAMPLE)(ledger_command)
application.command("peers", epilog=PEERS_EXAMPLE)(peers_command)
application.command("show", epilog=SHOW_EXAMPLE)(show_command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and give its exit code. Nothing but Ctrl-C escapes."""
    invocation = Invocation(shlex.join(["pagedkv", *arguments]))
    try:
        outcome = application(
            args=list(arguments) or ["--help"], prog_name="pagedkv", standalone_mode=False, obj=invocation
        )
    except (KeyboardInterrupt, typer.Abort):
        return _end("interrupted", EXIT_INTERRUPTED)
    except (Broken, CorruptState) as broken:
        return _end(str(broken), EXIT_BROKEN)
    except (BadInput, Refused, UsageError, MemoryError, OSError) as error:
        return _end(_bad_input_in_words(error), EXIT_BAD_INPUT)
    if outcome == EXIT_INTERRUPTED:  # newer releases of typer take Ctrl-C themselves
        return _end("interrupted", EXIT_INTERRUPTED)
    return outcome if isinstance(outcome, int) else 0


def _bad_input_in_words(error: Exception) -> str:
    match error:
        case Refused():
            return f"refused, {type(error).__name__}: {error}"
        case MemoryError():
            return f"not enough memory ({error}); ask for fewer blocks or requests"
        case OSError():
            return f"{error.filename or 'output'}: {error.strerror or error}; free it or name another"
        case BadInput():
            return str(error)
        case _:  # wrong usage, in the words of the library; its context knows which command was called
            message = getattr(error, "format_message", error.__str__)().rstrip(".")
            command = getattr(getattr(error, "ctx", None), "command_path", "pagedkv")
            message = message.replace(": Value error, ", ": ")  # the words of a validator behind the library
            return f"{message}; see {command} --help"


def _end(message: str, exit_code: int) -> int:
    sys.stderr.write(f"pagedkv: {one_line(message)}\n")
    return exit_code
