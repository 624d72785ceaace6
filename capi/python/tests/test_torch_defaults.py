"""StatePool does the same, to the bit, under every default dtype and device of torch."""

import contextlib

import pytest
from reference import TOLERANCE, delta_rule, distance, mixer_problem, problem

torch = pytest.importorskip("torch")
torch_ops = pytest.importorskip("gdn_inprocess.torch_ops")
StatePool = pytest.importorskip("gdn_inprocess.torch").StatePool

DIMS = {"key_heads": 2, "value_heads": 4, "key_dim": 24, "value_dim": 20}
DEFAULTS = {"bfloat16": torch.bfloat16, "float64": torch.float64, "meta": torch.device("meta")}


@contextlib.contextmanager
def default(value):
    """Sets torch's default dtype or device."""
    if isinstance(value, torch.dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(value)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
    else:
        torch.set_default_device(value)
        try:
            yield
        finally:
            torch.set_default_device(None)


def rule_path():
    """All that a pool of the delta rule does: what it returned, in order."""
    inputs = [torch.from_numpy(x) for x in problem(41, 60)]
    rows = lambda first, last: [x[first:last] for x in inputs]  # noqa: E731
    pool = StatePool(4, **DIMS)
    seen = [pool.prefill(*rows(0, 50), lengths=[40, 10], slots=[0, 2])]
    seen += [pool.decode(*rows(50, 53), lengths=[2, 1, 0], slots=[0, 2, -1])]
    seen += [pool.state(slot) for slot in range(4)]
    pool.copy([0], [1])
    seen += [pool.decode(*rows(53, 54), lengths=[1], slots=[slot]) for slot in (0, 1)]
    pool.set_state(3, seen[2], 42)
    file = pool.export_states([0, 3])
    pool.zero([0, 3])
    assert not pool.state(0).any()
    pool.import_states([3, 0], file)
    seen += [pool.state(slot) for slot in range(4)]
    return [*seen, pool.memory, pool.token_counts, pool.log_lengths]


def mixer_path():
    """The same of a pool with a convolution."""
    weights, inputs = mixer_problem(42, 50)
    weights = {name: torch.from_numpy(x) for name, x in weights.items()}
    inputs = [torch.from_numpy(x) for x in inputs]
    pool = StatePool(2, conv_width=4, hidden_size=8, **DIMS)
    seen = [pool.mixer_prefill(*[x[:45] for x in inputs], **weights, lengths=[45], slots=[1])]
    seen += [pool.mixer_decode(*[x[45:] for x in inputs], **weights, lengths=[5], slots=[1])]
    return [*seen, pool.state(1), pool.memory, pool.token_counts, pool.log_lengths]


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("path", [rule_path, mixer_path])
def test_defaults_of_torch_change_nothing(path, name):
    expected = path()
    with default(DEFAULTS[name]):
        actual = path()
    assert [(x.dtype, x.device) for x in actual] == [(x.dtype, x.device) for x in expected]
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_pool_may_be_older_than_the_default(name):
    inputs = problem(43, 40)
    pool = StatePool(1, **DIMS)
    with default(DEFAULTS[name]):
        output = pool.prefill(*[torch.from_numpy(x) for x in inputs], lengths=[40], slots=[0])
        state = pool.state(0)
    assert state.dtype == torch.float32
    expected, expected_state = delta_rule(*inputs)
    assert distance(output, expected) <= TOLERANCE
    assert distance(state, expected_state) <= TOLERANCE


def test_a_stream_that_is_captured_is_refused_before_a_context_is_made(monkeypatch):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="captured into a graph"):
        torch_ops.stream_of(device)

    class OnGpu:  # a state's memory, as far as it is looked at
        dtype, shape, device = torch.float32, (1, 4), torch.device("cuda", 0)
        dim, is_contiguous = (lambda _: 2), (lambda _: True)

    monkeypatch.setattr(torch_ops, "_context", lambda _: pytest.fail("a context was made during the capture"))
    monkeypatch.setattr(torch_ops.abi, "pool_bytes", lambda _: 16)
    counts = torch.zeros(1, dtype=torch.int64, device="cpu"), torch.zeros(1, dtype=torch.int32, device="cpu")
    spec = torch_ops.abi.make_spec(1, 1, 1, 8, 8)
    with pytest.raises(RuntimeError, match="captured into a graph"):
        torch_ops.PoolOver(spec, OnGpu(), *counts)
