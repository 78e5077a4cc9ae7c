"""`python -m pagedkv.bench`, the same as the console script `pagedkv`."""


def main() -> None:
    """Run the command line."""
