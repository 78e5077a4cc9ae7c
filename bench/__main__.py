"""`python -m pagedkv.bench`, the same as the console script `pagedkv`."""

import sys


def main() -> None:
    """Run the command line with the arguments of this process."""
    try:
        from pagedkv.bench.command_line import run  # noqa: PLC0415  (takes a second, in which Ctrl-C may come, too)

        exit_code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("pagedkv: interrupted\n")
        exit_code = 130
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
