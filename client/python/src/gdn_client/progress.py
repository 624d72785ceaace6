"""Bars for what takes long, where tqdm is installed and the caller asks for one.

Thread safety: a bar is for one thread at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Told: TypeAlias = Callable[[int], None]  # so much more is done


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress wants tqdm, which is not installed: pip install 'gdn-client[progress]'") from None
    return tqdm


@contextlib.contextmanager
def bar(wanted: bool, what: str, unit: str, total: int | None = None) -> Iterator[Told]:
    """Shows how much is done of `total`; bytes are told in multiples of 1024.

    Raises:
        ImportError: `wanted`, and tqdm is not installed.

    """
    if not wanted:
        yield lambda done: None
        return
    with _tqdm()(
        total=total, desc=what, unit=unit, unit_scale=True, unit_divisor=1024 if unit == "B" else 1000
    ) as shown:
        yield shown.update
