"""HTML for notebooks.

Thread safety: free functions.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns an HTML table. All its text is escaped."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(f"<{tag}>{html.escape(str(value))}</{tag}>" for value in values)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', header)}</tr></thead>" if header else ""
    return f"<table><caption>{html.escape(caption)}</caption>{head}<tbody>{body}</tbody></table>"


def size(count: int) -> str:
    """Formats a number of bytes for people, such as "1.5 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
