"""``python -m paraplan.cli`` does what ``paraplan`` does, where the entry point is not on the path."""

import sys

from paraplan.cli import main

sys.exit(main())
