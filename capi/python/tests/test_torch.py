"""torch.ops.gdn beside the rule in float64: on the CPU, and on a GPU where the library and torch have one."""

import numpy as np
import pytest
from reference import TOLERANCE, TOLERANCES, delta_rule, distance, mixer, mixer_problem, problem

import gdn_inprocess

torch = pytest.importorskip("torch")
StatePool = pytest.importorskip("gdn_inprocess.torch").StatePool

DIMS = {"key_heads": 2, "value_heads": 4, "key_dim": 24, "value_dim": 20}
HAS_GPU = gdn_inprocess.gpu_name() != "" and torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason="no GPU, or no kernels for it"))]
FORMS = [torch.ops.gdn.prefill.default, torch.ops.gdn.decode.default]
MIXERS = [torch.ops.gdn.mixer_prefill.default, torch.ops.gdn.mixer_decode.default]


@pytest.fixture(name="device", params=DEVICES)
def fixture_device(request):
    return request.param


@pytest.fixture(name="pool")
def fixture_pool(device):
    return StatePool(6, device=device, **DIMS)


def tensors(seed, tokens, device, dtype=torch.float32):
    return [torch.from_numpy(x).to(device, dtype) for x in problem(seed, tokens)]


def rows(inputs, first, last):
    return [x[first:last] for x in inputs]


def host(inputs):
    return [x.float().cpu().numpy() for x in inputs]


def arguments(device, lengths, dtype=torch.float32, requires_grad=False):
    """Of torch.ops.gdn.prefill or decode, on states that have seen tokens."""
    pool = StatePool(6, device=device, **DIMS)
    pool.prefill(*tensors(1, 70, device), lengths=[40, 30], slots=[2, 0])
    pool.decode(*tensors(2, 4, device), lengths=[1, 3], slots=[2, 0])
    inputs = [x.requires_grad_(requires_grad) for x in tensors(3, sum(lengths), device, dtype)]
    offsets = torch.tensor(np.concatenate(([0], np.cumsum(lengths))), dtype=torch.int32)
    slots = torch.tensor([2, 4, 0][: len(lengths)], dtype=torch.int32)
    return (*inputs, pool.memory, pool.token_counts, pool.log_lengths, offsets, slots)


def test_decays_may_be_by_channel(device):
    pool = StatePool(2, device=device, **DIMS, decay_per_channel=True)
    inputs = problem(12, 90, decay_per_channel=True)
    expected, state = delta_rule(*inputs)
    inputs = [torch.from_numpy(x).to(device) for x in inputs]
    head = pool.prefill(*rows(inputs, 0, 85), lengths=[85], slots=[1])
    tail = pool.decode(*rows(inputs, 85, 90), lengths=[5], slots=[1])
    assert distance(torch.cat([head, tail]).cpu().numpy(), expected) <= TOLERANCE
    assert distance(pool.state(1).numpy(), state) <= TOLERANCE


@pytest.mark.parametrize("form", FORMS, ids=["prefill", "decode"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_opcheck_finds_nothing(device, form, dtype):
    results = torch.library.opcheck(form, arguments(device, [5, 0, 7], dtype))
    assert results == dict.fromkeys(results, "SUCCESS")
    assert set(results) == {
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"use_qk_l2norm": True}], ids=str)
@pytest.mark.parametrize("tokens", [1, 31, 64, 100, 300])
def test_a_prefill_is_the_rule(pool, device, tokens, options, dtype):
    inputs = tensors(tokens, tokens, device, dtype)
    expected, state = delta_rule(*host(inputs), **options)
    output = pool.prefill(*inputs, lengths=[tokens], slots=[3], **options)
    assert output.dtype == dtype
    assert output.device.type == device
    assert distance(output.float().cpu(), expected) <= TOLERANCES[str(dtype).removeprefix("torch.")]
    assert distance(pool.state(3), state) <= TOLERANCE  # of the inputs as they were rounded
    assert pool.token_counts.tolist() == [0, 0, 0, tokens, 0, 0]


def test_prefill_then_decodes_of_several_are_one_sequence_each(pool, device):
    sequences = [tensors(seed, 60, device) for seed in (11, 12, 13)]
    slots = [4, 0, 5]
    lengths = [30, 0, 41]
    parts = [rows(inputs, 0, length) for inputs, length in zip(sequences, lengths, strict=True)]
    joined = [torch.cat(part) for part in zip(*parts, strict=True)]
    outputs = [pool.prefill(*joined, lengths=lengths, slots=slots).split(lengths)]
    seen = list(lengths)
    for step in range(19):
        lengths = [1, 1 + step % 2, 1]
        ends = [at + n for at, n in zip(seen, lengths, strict=True)]
        parts = [rows(s, at, end) for s, at, end in zip(sequences, seen, ends, strict=True)]
        joined = [torch.cat(part) for part in zip(*parts, strict=True)]
        outputs.append(pool.decode(*joined, lengths=lengths, slots=slots).split(lengths))
        seen = ends
    for i, inputs in enumerate(sequences):
        expected, state = delta_rule(*host(rows(inputs, 0, seen[i])))
        assert distance(torch.cat([output[i] for output in outputs]).cpu(), expected) <= TOLERANCE
        assert distance(pool.state(slots[i]), state) <= TOLERANCE


def test_forks_and_files_go_on_with_the_same_bits(pool, device):
    inputs = tensors(21, 60, device)
    pool.prefill(*rows(inputs, 0, 40), lengths=[40], slots=[0])
    pool.decode(*rows(inputs, 40, 45), lengths=[5], slots=[0])
    pool.copy([0], [1])
    file = pool.export_states([0])
    pool.import_states([2], file)
    other = StatePool(1, device=device, **DIMS)
    other.import_states([0], file)
    expected = pool.decode(*rows(inputs, 45, 50), lengths=[5], slots=[0])
    for of, slot in ((pool, 1), (pool, 2), (other, 0)):
        assert torch.equal(of.decode(*rows(inputs, 45, 50), lengths=[5], slots=[slot]), expected)
    pool.zero([0])
    assert not pool.state(0).any()
    assert pool.log_lengths.tolist() == [0, 10, 10, 0, 0, 0]


def test_a_padding_slot_has_zeros(pool, device):
    inputs = tensors(22, 5, device)
    output = pool.decode(*inputs, lengths=[2, 3], slots=[-1, 1])
    assert not output[:2].any()
    assert output[2:].any()


def test_work_follows_the_current_stream():
    if not HAS_GPU:
        pytest.skip("no GPU, or no kernels for it")
    inputs = tensors(23, 2000, "cpu")
    expected, _ = delta_rule(*host(inputs))
    stream = torch.cuda.Stream()
    for _ in range(20):
        pool = StatePool(1, device="cuda", **DIMS)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            on_device = [x.pin_memory().to("cuda", non_blocking=True) for x in inputs]
            busy = torch.ones(2000, 2000, device="cuda")
            for _ in range(10):
                busy = busy @ busy / 2000
            on_device = [x + 0 * busy[0, 0] for x in on_device]
            output = pool.prefill(*on_device, lengths=[2000], slots=[0]) * 1
            back = output.to("cpu")
        assert distance(back, expected) <= TOLERANCE


def mixer_tensors(seed, tokens, device, dtype=torch.float32):
    weights, inputs = mixer_problem(seed, tokens)
    on_device = {name: torch.from_numpy(x).to(device) for name, x in weights.items()}
    return weights, on_device, [torch.from_numpy(x).to(device, dtype) for x in inputs]


@pytest.mark.parametrize("form", MIXERS, ids=["prefill", "decode"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck_finds_nothing_in_mixers(device, form, dtype):
    pool = StatePool(3, device=device, conv_width=4, hidden_size=8, **DIMS)
    _, weights, inputs = mixer_tensors(31, 40, device)
    pool.mixer_prefill(*inputs, **weights, lengths=[40], slots=[1])
    _, _, inputs = mixer_tensors(32, 12, device, dtype)
    state = (pool.memory, pool.token_counts, pool.log_lengths)
    indices = (torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32))
    results = torch.library.opcheck(form, (*inputs, *weights.values(), *state, *indices, DIMS["key_heads"]))
    assert results == dict.fromkeys(results, "SUCCESS")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mixer_is_the_layer_without_its_projections(device, dtype):
    pool = StatePool(2, device=device, conv_width=4, hidden_size=8, **DIMS)
    weights, on_device, inputs = mixer_tensors(33, 120, device, dtype)
    expected, state = mixer(weights, *host(inputs))
    outputs = [pool.mixer_prefill(*rows(inputs, 0, 99), **on_device, lengths=[99], slots=[1])]
    outputs += [pool.mixer_decode(*rows(inputs, t, t + 1), **on_device, lengths=[1], slots=[1]) for t in range(99, 120)]
    assert outputs[0].dtype == dtype
    assert distance(torch.cat(outputs).float().cpu(), expected) <= TOLERANCES[str(dtype).removeprefix("torch.")]
    assert distance(pool.state(1), state) <= TOLERANCE
    refused(ValueError, "inputs of the StatePool that made memory", pool, tensors(34, 2, device), lengths=(2,))


def test_compiled_code_gives_the_same_bits(device):
    def step(*given):
        return torch.ops.gdn.prefill(*given) * 2

    expected = step(*arguments(device, [5, 0, 7]))
    given = arguments(device, [5, 0, 7])
    assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(*given), expected)
    assert given[6].tolist() == [30 + 3 + 7, 0, 40 + 1 + 5, 0, 0, 0]


def test_backward_is_refused(pool, device):
    inputs = tensors(24, 5, device)
    inputs[2].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"no backward: .* call them under torch.no_grad\(\)"):
        pool.prefill(*inputs, lengths=[5], slots=[0])
    assert pool.token_counts.tolist() == [0] * 6
    with torch.no_grad():
        pool.prefill(*inputs, lengths=[5], slots=[0])
    with pytest.raises(RuntimeError, match="backward"):
        torch.ops.gdn.prefill(*arguments(device, [5, 0, 7], requires_grad=True)).sum().backward()


def refused(error, words, pool, inputs, lengths=(5,), slots=(0,), form="prefill"):
    before = [x.clone() for x in (pool.memory, pool.token_counts, pool.log_lengths)]
    with pytest.raises(error, match=words):
        getattr(pool, form)(*inputs, lengths=list(lengths), slots=list(slots))
    after = (pool.memory, pool.token_counts, pool.log_lengths)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_refusals_say_what_was_expected(pool, device):
    q, k, v, g, beta = inputs = tensors(25, 5, device)
    refused(TypeError, "v is torch.float64; expected torch.float32", pool, (q, k, v.double(), g, beta))
    refused(ValueError, r"g is \[5, 4, 1\]; expected \[tokens, HV\]", pool, (q, k, v, g[:, :, None], beta))
    by_channel = g[:, :, None].expand(-1, -1, k.shape[2])
    refused(ValueError, r"a decay for each key channel .* memory is torch.float32", pool, (q, k, v, by_channel, beta))
    refused(ValueError, r"k is of rank 3, \[5, 2, 23\]; expected \[tokens, H, K\]", pool, (q, k[..., :23], v, g, beta))
    refused(ValueError, r"of 1 key heads, .* memory is torch.float32", pool, (q[:, :1], k[:, :1], v, g, beta))
    refused(ValueError, "lengths has 1 entries and slots has 2", pool, inputs, slots=(0, 1))
    refused(ValueError, "slots", pool, tensors(25, 6, device), lengths=(3, 3), slots=(1, 1))
    refused(ValueError, "max_decode_tokens", pool, tensors(25, 9, device), lengths=(9,), form="decode")
    refused(ValueError, r"slots\[0\] is 6", pool, inputs, slots=(6,))
    with pytest.raises(ValueError, match=r"slots is torch\.int64"):
        torch.ops.gdn.prefill(*arguments(device, [5])[:-1], torch.tensor([0]))
    with pytest.raises(gdn_inprocess.DataLoss):
        pool.import_states([0], b"no file")
    if HAS_GPU and device == "cuda":
        refused(ValueError, "q is on cpu and memory on cuda", pool, (q.cpu(), k, v, g, beta))
