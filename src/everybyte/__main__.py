"""`python -m everybyte` is the `everybyte` command."""

from everybyte.cli import main

if __name__ == "__main__":
    main()
