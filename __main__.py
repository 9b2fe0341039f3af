"""`python -m lingbot_world` is the `lingbot-world` command."""

import sys

from .headless.cli import main

sys.exit(main())
