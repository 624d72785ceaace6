"""Looks into a wheel, and makes calls with what was installed of it: python wheel_check.py WHEEL, in that environment.

scripts/python_client.sh runs it. A failed assertion says what is wrong.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from server import running

import gdn_client

MODEL = Path(__file__).resolve().parents[3] / "tests" / "golden" / "qwen3_next_5"
WANTED = (
    "gdn_client/py.typed",
    "gdn_client/proto/descriptors.binpb",
    "gdn_client/proto/gdn/v1/step_pb2.py",
    "gdn_client/proto/gdn/v1/step_pb2.pyi",
    "gdn_client/proto/google/rpc/status_pb2.py",
    "gdn_client/proto/google/rpc/status_pb2.pyi",
    "gdn_client/torch/__init__.py",
)


def main() -> None:
    names = zipfile.ZipFile(sys.argv[1]).namelist()
    missing = [name for name in WANTED if name not in names]
    assert not missing, f"the wheel has no {missing}"
    foreign = [name for name in names if not name.startswith(("gdn_client/", "gdn_client-"))]
    assert not foreign, f"the wheel would install {foreign} beside the package"
    assert Path(gdn_client.__file__).is_relative_to(sys.prefix), f"{gdn_client.__file__} is not what was installed"
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), "--model", f"next={MODEL}") as server,
        gdn_client.Client(server.target, shared_memory="auto") as client,
        client.session() as session,
    ):
        x = np.zeros((3, client.model("next").dims.hidden_size), np.float32)
        assert session.prefill(session.layers[0], x).shape == x.shape
        told = subprocess.run(
            [Path(sys.prefix) / "bin" / "gdn", "models", "--target", server.target],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "qwen3_next" in told.stdout
    print(f"{Path(sys.argv[1]).name}: installed by itself, it prefills and `gdn` runs")


main()
