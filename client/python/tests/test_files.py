"""Paths that a user gives: nothing hangs, and nothing is replaced that is not a regular file.

Devices are made by mknod in a private folder; no real one is named, because a failing test would destroy it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gdn_client import files
from gdn_client.files import output_file, read_file


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WAIT_FOR_OTHER_END", 0.5)


def write(path: Path, data: bytes = b"new") -> None:
    with output_file(path) as out:
        out(data)


def device(path: Path, minor: int) -> Path:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        path.open("rb").close()
    except OSError as error:
        pytest.skip(f"no device can be made: {error}")
    return path


def test_a_regular_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write(file, b"old")
    file.chmod(0o640)
    write(file)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o640)
    with pytest.raises(RuntimeError), output_file(file) as out:
        out(b"part")
        raise RuntimeError
    assert file.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_symbolic_link_stays(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder / "file")
    with pytest.raises(OSError, match="symbolic link to"):
        write(link)
    (folder / "file").write_bytes(b"old")
    write(link)
    assert link.is_symlink()
    assert (folder / "file").read_bytes() == b"new"


def test_a_folder_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "file"):
        with pytest.raises(OSError, match=r"folder|No such file"):
            write(path)
    with pytest.raises(OSError, match="No such file"):
        read_file(tmp_path / "none")
    with pytest.raises(OSError, match="Is a directory"):
        read_file(tmp_path)


def test_a_device_is_written_through(tmp_path: Path) -> None:
    null, full, zero = (device(tmp_path / name, minor) for name, minor in (("null", 3), ("full", 7), ("zero", 5)))
    write(null)
    with pytest.raises(OSError, match="No space left"):
        write(full)
    with pytest.raises(OSError, match="is not a file to read"):
        read_file(zero)
    assert all(path.is_char_device() for path in (null, full, zero))


def test_a_pipe_is_written_through_and_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = bytes(range(256)) * 1000  # more than a pipe holds

    def other_end(act: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        return thread

    got: list[bytes] = []
    reader = other_end(lambda: got.append(pipe.read_bytes()))
    write(pipe, data)
    reader.join(30)
    writer = other_end(lambda: pipe.write_bytes(data))
    assert (got, read_file(pipe)) == ([data], data)
    writer.join(30)
    assert pipe.is_fifo()


def test_a_pipe_without_another_end_is_not_waited_for_forever(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TimeoutError, match="nobody has opened this pipe for reading"):
        write(pipe)
    with pytest.raises(TimeoutError, match="nothing has come through"):
        read_file(pipe)
    assert pipe.is_fifo()
