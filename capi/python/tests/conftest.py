"""The package beside the tests, where none is installed."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent.parent / "src"))
