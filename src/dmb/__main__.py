"""`python -m dmb` is `dmb`."""

from dmb.cli import main

if __name__ == "__main__":
    main()
