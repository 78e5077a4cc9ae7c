"""`python -m pagedkv.bench`, the same as the console script `pagedkv`."""

import sys

from pagedkv.bench.command_line import run


def main() -> None:
    """Run the command line with the arguments of this process."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
