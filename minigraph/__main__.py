"""`python -m minigraph`: see command/."""

import sys

from minigraph.command import main

if __name__ == "__main__":
    sys.exit(main())
