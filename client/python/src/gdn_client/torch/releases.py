"""The releases of transformers that this package was tested with.

Thread safety: free functions.
"""

from __future__ import annotations

import transformers

TESTED = "5.17, 5.20 and 5.24"


def unknown(what: str) -> str:
    """Returns the message for a transformers release that does not work as expected."""
    return (
        f"transformers {transformers.__version__} is used in a way that gdn_client.torch does not know: {what}. "
        f"Tested with transformers {TESTED}"
    )
