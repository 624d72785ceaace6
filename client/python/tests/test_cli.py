"""The command line `gdn`: tables, files, and errors of one line."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from server import Server

import gdn_client
from gdn_client import cli
from gdn_client.cli import as_table, main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_it_tells_of_the_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", "--target", server.target)
    assert code == 0
    assert "gdn_server" in out
    assert "device" in out
    assert "disk" in out
    code, out, _ = run(capsys, "info", "--json", "--target", server.target)
    assert code == 0
    assert json.loads(out)[0]["backend"] == "cpu"
    code, out, _ = run(capsys, "models", "--target", server.target)
    assert code == 0
    header, row = out.splitlines()
    assert header.split()[:2] == ["model", "family"]
    assert row.split()[:2] == ["next", "qwen3_next"]
    code, out, _ = run(capsys, "metrics", "--target", server.target)
    assert code == 0
    assert "gdn_sessions" in out


def test_sessions_travel_as_files(
    server: Server, client: gdn_client.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ("--target", server.target)
    with client.session(session_id="cli") as session:
        layer = session.layers[0]
        x = np.random.default_rng(1).standard_normal((4, client.model("next").dims.hidden_size)).astype(np.float32)
        session.prefill(layer, x[:3])
        code, out, _ = run(capsys, "sessions", *target)
        assert code == 0
        assert any(line.split()[:4] == ["cli", "next", str(len(session.layers)), "3"] for line in out.splitlines())
        code, out, _ = run(capsys, "sessions", "--json", *target, "list")  # flags may stand before the second word
        assert "cli" in [row["session"] for row in json.loads(out)]
        file = tmp_path / "cli.safetensors"
        assert run(capsys, "state", "export", "--session", "cli", "--out", str(file), *target)[0] == 0
        assert [path.name for path in tmp_path.iterdir()] == [file.name]
        code, out, _ = run(capsys, "state", "import", "--in", str(file), "--id", "cli-copy", *target)
        assert (code, out) == (0, "cli-copy\n")
        with client.attach("cli-copy") as copy:
            np.testing.assert_array_equal(copy.decode(layer, x[3]), session.decode(layer, x[3]))
        assert run(capsys, "sessions", "delete", "cli-copy", *target)[0] == 0
    code, out, err = run(capsys, "sessions", "delete", "cli-copy", *target)
    assert (code, out) == (1, "")
    assert err.startswith("gdn: NOT_FOUND (SESSION_NOT_FOUND): ")
    assert err.count("\n") == 1


def test_it_measures_a_layer_and_leaves_nothing(
    server: Server, client: gdn_client.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [session.name for session in client.sessions()]
    code, out, _ = run(
        capsys, "measure", "--target", server.target, "--batch", "2", "--prompt", "5", "--steps", "3", "--shared-memory"
    )
    assert code == 0
    width = client.model("next").dims.hidden_size
    assert f"prefill: 2 x [5, {width}] -> [5, {width}]" in out
    assert f"decode: 3 x [2, {width}] -> [2, {width}], median" in out
    assert [session.name for session in client.sessions()] == before
    code, _, err = run(capsys, "measure", "--target", server.target, "--layer", "999")
    assert code == 1
    assert "LAYER_NOT_GDN" in err
    assert [session.name for session in client.sessions()] == before


def test_errors_are_of_one_line(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"no state")
    for arguments, words in (
        (("info", "--target", "unix:/nowhere/gdn.sock", "--timeout", "200ms"), "UNAVAILABLE"),
        (("state", "import", "--in", str(tmp_path / "none"), "--target", server.target), "No such file"),
        (("state", "import", "--in", str(damaged), "--target", server.target), "DATA_LOSS"),
        (
            ("state", "export", "--session", "nobody", "--out", str(tmp_path / "out"), "--target", server.target),
            "SESSION_NOT_FOUND",
        ),
        (("info", "--target", server.target, "--tls-cert", "a"), "tls_cert and tls_key go together"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (1, ""), arguments
        assert words in err
        assert err.startswith("gdn: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_wrong_command_line_ends_with_2_and_says_what_was_expected(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, words in (
        (["nothing"], "invalid choice"),
        ([], "required"),
        (["info", "--bogus"], "unrecognized arguments: --bogus"),
        (["sesions"], "did you mean 'sessions'?"),
        (["sessions", "lst"], "did you mean 'list'?"),
        (["info", "--targt=x"], "did you mean '--target'?"),
        (["measure", "--batch", "0"], "is '0', expected a whole number, 1 or more"),
        (["measure", "--batch", "many"], "is 'many', expected a whole number, 1 or more"),
        (
            ["info", "--timeout", "5"],
            "is '5', expected a time above 0 with its unit, such as 500ms, 10s or 2m; did you mean 5s?",
        ),
        (["info", "--timeout", "0s"], "expected a time above 0 with its unit"),
        (["info", "--timeout", "nan"], "expected a time above 0 with its unit"),
        (["info", "--target", "127.0.0.1:99999"], "has port '99999', expected a number in 1 .. 65535"),
        (["info", "--target", ""], "is empty, expected HOST:PORT such as 127.0.0.1:50061"),
        (["info", "--target", "50061"], "is a port without a host"),
        (["info", "--target", "::1:50061"], "without brackets, expected [::1]:50061"),
        (["info", "--target", "h" * 5000 + ":1"], "of more than 253 letters"),
        (["info", "--target", "http://box:50061"], "is a URL, expected HOST:PORT"),
    ):
        with pytest.raises(SystemExit) as refused:
            main(wrong)
        assert refused.value.code == 2, wrong
        err = capsys.readouterr().err
        assert words in err, wrong
        assert len(err) < 2000
    with pytest.raises(SystemExit) as helped:
        main(["--help"])
    assert helped.value.code == 0
    for wrong_target in ("127.0.0.1:99999", "dns:///box:70000", "ipv4:127.0.0.1:1,127.0.0.1:65536"):
        with pytest.raises(ValueError, match=r"expected a number in 1 \.\. 65535"):
            gdn_client.Client(wrong_target)


def test_an_export_replaces_nothing_that_is_not_a_regular_file(
    server: Server, client: gdn_client.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    file.write_bytes(b"old")
    link.symlink_to(file)
    with client.session(session_id="linked"):
        assert (
            run(capsys, "state", "export", "--session", "linked", "--out", str(link), "--target", server.target)[0] == 0
        )
    assert link.is_symlink()
    assert file.stat().st_size > 100


def test_sessions_are_made_shown_and_ended(
    server: Server, client: gdn_client.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ("--target", server.target)
    assert run(capsys, "sessions", "create", "--model", "next", "--id", "made", *target) == (0, "made\n", "")
    code, out, _ = run(capsys, "sessions", "show", "made", "--json", *target)
    assert code == 0
    assert {row["tokens"] for row in json.loads(out)} == {0}
    assert "made" in [session.name.removeprefix("sessions/") for session in client.sessions()]
    assert run(capsys, "sessions", "delete", "made", *target) == (0, "made has ended\n", "")
    code, _, err = run(capsys, "sessions", "show", "made", *target)
    assert code == 1
    assert "gdnctl sessions list" in err or "create it" in err


def test_the_words_are_gdnctls(server: Server) -> None:
    gdnctl = Path(os.environ["GDN_SERVER"]).parent / "gdnctl"
    parser = cli._parser()

    def commands_of(one: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, set[str]]]:
        flags = {flag for action in one._actions for flag in action.option_strings if flag.startswith("--")}
        deeper = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]
        if words and one.get_default("run"):
            yield words, flags - {"--help"}
        for action in deeper:
            for name, child in action.choices.items():
                yield from commands_of(child, f"{words} {name}".strip())

    own = {"measure": None, "--allow-insecure": None, "--progress": None}  # what gdnctl does not have
    found = 0
    for words, flags in commands_of(parser, ""):
        if words in own:
            continue
        told = subprocess.run([gdnctl, "help", *words.split()], capture_output=True, text=True, check=True).stdout
        for flag in flags - set(own):
            assert f"  {flag} " in told, f"gdn {words} takes {flag}, gdnctl does not"
        found += 1
    assert found >= 9


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"gdn {gdn_client.__version__}\n"
    assert importlib.metadata.version("gdn-client") == gdn_client.__version__


def test_it_is_installed_as_gdn(server: Server) -> None:
    program = Path(sys.executable).parent / "gdn"
    done = subprocess.run([program, "models", "--target", server.target], capture_output=True, text=True, check=True)
    assert "qwen3_next" in done.stdout


def test_tables_line_up() -> None:
    assert as_table([]) == "none"
    assert as_table([{"a": "x", "n": 5}, {"a": "longer", "n": 10}]) == "a        n\nx        5\nlonger  10"
