from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from server import Server, running

import gdn_client

REPOSITORY = Path(__file__).resolve().parents[3]
MODEL = REPOSITORY / "tests" / "golden" / "qwen3_next_5"


def pytest_configure(config: pytest.Config) -> None:
    if "GDN_SERVER" not in os.environ:
        raise pytest.UsageError("GDN_SERVER names no gdn_server; build one (scripts/test.sh) and set it")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with running(folder, "--model", f"next={MODEL}", "--disk-dir", str(folder / "states")) as one:
        yield one


@pytest.fixture()
def client(server: Server) -> Iterator[gdn_client.Client]:
    with gdn_client.Client(server.target) as one:
        yield one


@pytest.fixture()
def random() -> np.random.Generator:
    return np.random.default_rng(3)
