"""`python -m fedcodist`."""

import sys

from fedcodist.cli.main import main

sys.exit(main())
