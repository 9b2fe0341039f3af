"""`python -m lingbot_world` is the `lingbot-world` command."""

import sys

from .cli import main

sys.exit(main())
