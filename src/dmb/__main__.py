"""`python -m dmb` is `dmb`."""

from dmb.app.cli import main

if __name__ == "__main__":
    main()
