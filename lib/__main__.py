"""`python -m lib`, which is `lockstep`."""

import sys

from lib.command_line import main

if __name__ == "__main__":
    sys.exit(main())
