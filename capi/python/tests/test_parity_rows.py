"""gdn_parity's rows of the delta rule, as $GDN_PARITY --dump writes them, through numpy pools and torch's operators."""

import functools
import os
import subprocess

import numpy as np
import pytest
import safetensors_file
from reference import delta_rule, distance

import gdn_inprocess

try:
    import torch

    from gdn_inprocess.torch import StatePool
except ImportError:
    torch = None

SUITES = ["parity", "ops", "cache", "llama", "fla", "kda"]
LONGEST_DECODE = 70  # tokens of a row's longest sequence, for it to be decoded too
STEP = 8


@pytest.fixture(name="rows", scope="module")
def fixture_rows(tmp_path_factory):
    program = os.environ.get("GDN_PARITY", "")
    if not program:
        pytest.skip("GDN_PARITY is not set; scripts/python_inprocess.sh sets it")
    rows = []
    for suite in SUITES:
        folder = tmp_path_factory.mktemp(suite)
        command = [program, "--backend=cpu", f"--suite={suite}", f"--dump={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows += [safetensors_file.read(path) for path in sorted(folder.glob("*-delta_rule.safetensors"))]
    expected = []
    for metadata, tensors in rows:
        inputs = {name[3:]: tensor for name, tensor in tensors.items() if name.startswith("in.")}
        cu = inputs["cu_seqlens"].astype(int)
        given = [inputs[name] for name in ("q", "k", "v", "g", "beta")]
        results = [
            delta_rule(*(x[begin:end] for x in given), state=state, scale=1.0)
            for begin, end, state in zip(cu[:-1], cu[1:], inputs["initial_state"], strict=True)
        ]
        output = np.concatenate([result[0] for result in results])
        states = np.stack([result[1] for result in results])
        expected.append((metadata, np.diff(cu).tolist(), given, inputs["initial_state"], output, states))
    return expected


@functools.cache
def context():
    return gdn_inprocess.Context(threads=1)


class NumpyStates:
    def __init__(self, sequences, dims):
        self.pool = context().pool(sequences, **dims)
        self.pool.allocate(sequences)

    def advance(self, form, tensors, lengths):
        return getattr(self.pool, form)(range(len(lengths)), lengths, *tensors, scale=1.0)

    def state(self, slot):
        return self.pool.state(slot)


class TorchStates:
    def __init__(self, sequences, dims, device):
        self.device = device
        self.pool = StatePool(sequences, device=device, **dims)

    def advance(self, form, tensors, lengths):
        on_device = [torch.from_numpy(x.copy()).to(self.device) for x in tensors]
        slots = range(len(lengths))
        return getattr(self.pool, form)(*on_device, lengths=lengths, slots=slots, scale=1.0).cpu().numpy()

    def state(self, slot):
        return self.pool.state(slot).numpy()


def make_states(through, *arguments):
    if through == "numpy":
        return NumpyStates(*arguments)
    if torch is None:
        pytest.skip("torch is not installed")
    if through == "cuda" and not (gdn_inprocess.gpu_name() and torch.cuda.is_available()):
        pytest.skip("no GPU, or no kernels for it")
    return TorchStates(*arguments, through)


def decode(states, tensors, lengths):
    """Steps of a few tokens of each sequence; the outputs in the rows' order."""
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    output = np.full(tensors[2].shape, np.nan)
    for at in range(0, max(lengths), STEP):
        now = [min(max(length - at, 0), STEP) for length in lengths]
        which = np.concatenate([np.arange(start + at, start + at + n) for start, n in zip(starts, now, strict=True)])
        output[which] = states.advance("decode", [x[which] for x in tensors], now)
    return output


@pytest.mark.parametrize("form", ["prefill", "decode"])
@pytest.mark.parametrize("through", ["numpy", "cpu", "cuda"])
def test_every_row_is_within_its_tolerance(rows, through, form):
    run, worst, faults = 0, 0.0, []
    for metadata, lengths, tensors, initial, expected, expected_states in rows:
        if form == "decode" and max(lengths) > LONGEST_DECODE:
            continue
        q, v = tensors[0], tensors[2]
        dims = {"key_heads": q.shape[1], "value_heads": v.shape[1], "key_dim": q.shape[2], "value_dim": v.shape[2]}
        dims["decay_per_channel"] = tensors[3].ndim == 3
        states = make_states(through, len(lengths), dims)
        for slot, state in enumerate(initial):
            states.pool.set_state(slot, state if through == "numpy" else torch.from_numpy(state.copy()), 0)
        output = states.advance(form, tensors, lengths) if form == "prefill" else decode(states, tensors, lengths)
        final = np.stack([states.state(slot) for slot in range(len(lengths))])
        error = max(distance(output, expected), distance(final, expected_states))
        run, worst = run + 1, max(worst, error)
        if not error <= float(metadata["tolerance"]):
            faults.append((metadata["suite"], metadata["test"], metadata["shape"], error, metadata["tolerance"]))
    print(f"{through} {form}: {run} rows, worst relative norm error {worst:.1e}")
    assert not faults
    assert run >= 50
