"""``python -m pmapx`` is the command line."""

from pmapx._src.cli import main

if __name__ == "__main__":
    main()
