"""`python -m ringfence.cli` is `ringfence`."""

import sys

from . import main

sys.exit(main())
