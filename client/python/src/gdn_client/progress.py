"""Progress bars for long calls. They need tqdm, and are shown only if the caller asks.

Thread safety: a bar is for one thread at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Told: TypeAlias = Callable[[int], None]  # called with the amount that was done since the last call


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress wants tqdm, which is not installed: pip install 'gdn-client[progress]'") from None
    return tqdm


@contextlib.contextmanager
def bar(wanted: bool, what: str, unit: str, total: int | None = None) -> Iterator[Told]:
    """Shows how much of `total` is done. Bytes are shown in units of 1024.

    Raises:
        ImportError: `wanted` is set, and tqdm is not installed.

    """
    if not wanted:
        yield lambda done: None
        return
    with _tqdm()(
        total=total, desc=what, unit=unit, unit_scale=True, unit_divisor=1024 if unit == "B" else 1000
    ) as shown:
        yield shown.update
