"""`python -m fedwcm` is the command `fedwcm`."""

import sys

from fedwcm.cli import main

sys.exit(main())
