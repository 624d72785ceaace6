"""The modules of the asyncio client that scripts/generate_aio.py makes."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

import gdn_client
from gdn_client import aio

PACKAGE = Path("client") / "python"
OF_THREADS = {"prefill_future", "decode_future", "step_future", "start", "_repr_html_"}
STARTS_AT_ONCE = {"decode_stream", "prefill_stream", "step_stream", "watch_state"}  # return iterators
WITHOUT_A_CALL = {"batch", "detach", "stop", "summary", "token_count"}


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(REPOSITORY / "scripts" / "generate_aio.py"), "--check", "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_they_are_what_the_tool_writes() -> None:
    done = check(REPOSITORY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["session", "aio_session"])
def test_a_change_of_one_side_is_reported(tmp_path: Path, name: str) -> None:
    shutil.copytree(REPOSITORY / PACKAGE / "src", tmp_path / PACKAGE / "src")
    shutil.copy(REPOSITORY / PACKAGE / "pyproject.toml", tmp_path / PACKAGE)
    changed = tmp_path / PACKAGE / "src" / "gdn_client" / f"{name}.py"
    changed.write_text(changed.read_text().replace("Lists the named checkpoints", "Lists them"))
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stdout == "aio_session.py is not what session.py says (scripts/generate_aio.py --write)\n"


@pytest.mark.parametrize("name", aio.__all__)
def test_both_clients_have_the_same_methods(name: str) -> None:
    threads, tasks = (
        {
            key: value
            for key, value in inspect.getmembers(kind)
            if inspect.isfunction(value) or isinstance(value, property)
        }
        for kind in (getattr(gdn_client, name), getattr(aio, name))
    )
    renamed = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
    left_out = OF_THREADS if name == "Client" else OF_THREADS - {"_repr_html_"}
    assert tasks.keys() == {renamed.get(key, key) for key in threads.keys() - left_out}
    for key, method in tasks.items():
        if not inspect.isfunction(method) or key.startswith("_") or key in WITHOUT_A_CALL | STARTS_AT_ONCE:
            continue
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method), key
        if isinstance(threads[key], property):
            continue
        parameters = inspect.signature(threads[key]).parameters
        assert inspect.signature(method).parameters == parameters, key
