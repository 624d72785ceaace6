from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(REPOSITORY / "client" / "python" / "tests")]
MODEL = REPOSITORY / "tests" / "golden" / "qwen3_next_5"


@pytest.fixture()
def server(tmp_path: Path) -> Iterator[object]:
    from server import running

    if "GDN_SERVER" not in os.environ:
        pytest.skip("GDN_SERVER names no gdn_server")
    with running(tmp_path, "--model", f"next={MODEL}") as one:
        yield one
