"""libgdn beside a gdn_server: the same calls give the same bits, and states go from one to the other."""

import os
import subprocess
import time

import numpy as np
import pytest
import safetensors_file
from reference import problem

from gdn_inprocess import Context

DIMS = {"key_heads": 2, "value_heads": 4, "key_dim": 24, "value_dim": 20}
PROMPT = 700  # the server runs it in two segments
NAMES = ("q", "k", "v", "g", "beta")


class Server:
    def __init__(self, folder):
        self.folder = folder
        self.programs = os.environ.get("GDN_PROGRAMS", "")
        if not self.programs:
            pytest.skip("GDN_PROGRAMS is not set; scripts/python_inprocess.sh sets it")
        port_file = folder / "port"
        self.process = subprocess.Popen(
            [f"{self.programs}/gdn_server", "--listen=127.0.0.1:0", f"--port-file={port_file}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while not (port_file.exists() and port_file.read_text()):
            assert self.process.poll() is None, "the server did not start"
            assert time.monotonic() < deadline, "the server has no port"
            time.sleep(0.05)
        self.target = f"127.0.0.1:{port_file.read_text().strip()}"

    def gdnctl(self, *arguments):
        command = [f"{self.programs}/gdnctl", *arguments, f"--target={self.target}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"

    def step(self, kind, session, inputs):
        """A prefill or decode of one session; the output's rows."""
        files = self.folder / "in.safetensors", self.folder / "out.safetensors"
        tensors = inputs if kind == "prefill" else [x[None] for x in inputs]
        safetensors_file.write(files[0], dict(zip(NAMES, tensors, strict=True)))
        self.gdnctl(kind, f"--session={session}", f"--in={files[0]}", f"--out={files[1]}")
        output = safetensors_file.read(files[1])[1]["output"]
        return output if kind == "prefill" else output[0]


@pytest.fixture(name="server")
def fixture_server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.process.terminate()
    server.process.wait()


def test_the_bits_are_a_servers_and_states_go_both_ways(server, tmp_path):
    inputs = problem(41, PROMPT + 40)
    pool = Context(threads=1).pool(3, **DIMS)
    slot, other, third = pool.allocate(3)
    at = 0

    def step(kind, tokens, *, session, slots):
        rows = [x[at : at + tokens] for x in inputs]
        expected = server.step(kind, session, rows)
        for s in slots:
            # max_beta is the limit of the server, which takes no beta above 1 unless the request says so.
            options = {"max_beta": 1.0} if kind == "prefill" else {}
            output = getattr(pool, kind)([s], [tokens], *rows, **options)
            assert np.array_equal(output.view(np.uint32), expected.view(np.uint32))

    server.gdnctl("sessions", "create", "--operator=2,4,24,20", "--id=a")
    step("prefill", PROMPT, session="a", slots=[slot])
    at = PROMPT
    for tokens in (1, 1, 3, 1):
        step("decode", tokens, session="a", slots=[slot])
        at += tokens

    file = tmp_path / "state.safetensors"
    server.gdnctl("state", "export", "--session=a", f"--out={file}")
    pool.import_states([other], file.read_bytes())
    file.write_bytes(pool.export_states([slot]))
    server.gdnctl("state", "import", f"--in={file}", "--id=b")
    pool.copy([slot], [third])
    for tokens in (8, 5, 1):
        step("decode", tokens, session="b", slots=[slot, other])
        at += tokens
    step("prefill", 9, session="b", slots=[slot, other])
    at = PROMPT + 6
    step("decode", 8, session="a", slots=[third])
