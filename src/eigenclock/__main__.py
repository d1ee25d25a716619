"""``python -m eigenclock``: the command line where no script is installed."""

import sys

from eigenclock.cli import main

sys.exit(main())
