"""`python -m ringfence` is `ringfence`."""

import sys

from .cli import main

sys.exit(main())
