"""numpy arrays through libgdn, beside the rule in float64."""

import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from reference import TOLERANCE, TOLERANCES, delta_rule, distance, mixer, mixer_problem, problem

from gdn_inprocess import Context, DataLoss, InvalidArgument, MixerWeights, OutOfMemory

DIMS = {"key_heads": 2, "value_heads": 4, "key_dim": 24, "value_dim": 20}


@pytest.fixture(name="pool")
def fixture_pool():
    return Context(threads=2).pool(8, **DIMS)


def rows(arrays, first, last):
    return [x[first:last] for x in arrays]


@pytest.mark.parametrize("tokens", [1, 7, 31, 32, 64, 65, 200])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"use_qk_l2norm": True}])
def test_a_prefill_is_the_rule(pool, tokens, options):
    inputs = problem(tokens, tokens)
    [slot] = pool.allocate(1)
    expected, state = delta_rule(*inputs, **options)
    assert distance(pool.prefill([slot], [tokens], *inputs, **options), expected) <= TOLERANCE
    assert distance(pool.state(slot), state) <= TOLERANCE
    assert pool.tokens(slot) == tokens


def test_a_batch_of_lengths_gives_the_bits_of_each_alone(pool):
    lengths = [5, 0, 100, 33, 1]
    inputs = problem(1, sum(lengths))
    slots = pool.allocate(len(lengths))
    together = pool.prefill(slots, lengths, *inputs)
    [alone] = pool.allocate(1)
    first = 0
    for slot, length in zip(slots, lengths, strict=True):
        part = rows(inputs, first, first + length)
        pool.zero([alone])
        assert np.array_equal(pool.prefill([alone], [length], *part), together[first : first + length])
        assert np.array_equal(pool.state(alone), pool.state(slot))
        first += length


def test_prefill_then_decodes_are_one_sequence(pool):
    inputs = problem(2, 120)
    expected, state = delta_rule(*inputs)
    [slot] = pool.allocate(1)
    outputs = [pool.prefill([slot], [70], *rows(inputs, 0, 70))]
    first = 70
    for length in [1] * 18 + [8, 3, 0, 8, 8]:  # the log is folded on the way, and in the middle of calls
        outputs.append(pool.decode([slot], [length], *rows(inputs, first, first + length)))
        first += length
    outputs.append(pool.prefill([slot], [120 - first], *rows(inputs, first, 120)))
    assert distance(np.concatenate(outputs), expected) <= TOLERANCE
    assert distance(pool.state(slot), state) <= TOLERANCE


def test_decays_may_be_by_channel():
    pool = Context(threads=2).pool(4, **DIMS, decay_per_channel=True)
    inputs = problem(11, 120, decay_per_channel=True)
    expected, state = delta_rule(*inputs)
    [slot, copy] = pool.allocate(2)
    outputs = [pool.prefill([slot], [70], *rows(inputs, 0, 70))]
    for first in range(70, 120):
        outputs.append(pool.decode([slot], [1], *rows(inputs, first, first + 1)))
    assert distance(np.concatenate(outputs), expected) <= TOLERANCE
    assert distance(pool.state(slot), state) <= TOLERANCE
    pool.import_states([copy], pool.export_states([slot]))
    assert np.array_equal(pool.state(copy), pool.state(slot))
    with pytest.raises(InvalidArgument, match=r"g is of rank 2, \[4, 4\]; expected \[tokens, HV, K\]"):
        pool.prefill([slot], [4], *problem(8, 4))
    with pytest.raises(InvalidArgument, match="decay is 1; expected GDN_DECAY_PER_HEAD"):
        Context(threads=1).pool(1, **DIMS, conv_width=4, hidden_size=8, decay_per_channel=True)


def test_float16_goes_in_and_out(pool):
    inputs = [x.astype(np.float16) for x in problem(3, 50)]
    [slot] = pool.allocate(1)
    output = pool.prefill([slot], [50], *inputs)
    assert output.dtype == np.float16
    assert distance(output, delta_rule(*inputs)[0]) <= TOLERANCES["float16"]


def test_bf16_states_are_rounded_and_stay_near():
    pool = Context(threads=1).pool(1, bf16_states=True, **DIMS)
    inputs = problem(4, 90)
    [slot] = pool.allocate(1)
    pool.prefill([slot], [90], *inputs)
    state = pool.state(slot)
    assert TOLERANCE < distance(state, delta_rule(*inputs)[1]) <= TOLERANCES["bfloat16"]
    assert not (state.view(np.uint32) & 0xFFFF).any()


def test_forks_and_files_go_on_with_the_same_bits(pool):
    inputs = problem(5, 60)
    slots = pool.allocate(4)
    pool.prefill(slots[:1], [40], *rows(inputs, 0, 40))
    pool.decode(slots[:1], [5], *rows(inputs, 40, 45))
    pool.copy([slots[0]], [slots[1]])
    pool.import_states([slots[2], slots[3]], pool.export_states([slots[0], slots[1]]))
    outputs = [pool.decode([slot], [8], *rows(inputs, 45, 53)) for slot in slots]
    assert all(np.array_equal(output, outputs[0]) for output in outputs)
    assert {pool.tokens(slot) for slot in slots} == {53}


def test_a_state_that_is_set_is_where_a_call_begins(pool):
    inputs = problem(6, 10)
    state = np.random.default_rng(6).standard_normal(pool.state_shape)
    [slot] = pool.allocate(1)
    pool.set_state(slot, state, tokens=3)
    expected, _ = delta_rule(*inputs, state=state.astype(np.float32))
    assert distance(pool.prefill([slot], [10], *inputs), expected) <= TOLERANCE
    assert pool.tokens(slot) == 13


def test_arrays_that_are_not_contiguous_are_copied(pool):
    inputs = problem(7, 20)
    strided = [np.repeat(x, 2, axis=0)[::2] for x in inputs]
    slots = pool.allocate(2)
    assert np.array_equal(pool.prefill(slots[:1], [20], *inputs), pool.prefill(slots[1:], [20], *strided))


def test_a_mixer_is_the_layer_without_its_projections():
    pool = Context(threads=2).pool(4, conv_width=4, hidden_size=64, **DIMS)
    weights, inputs = mixer_problem(11, 130)
    expected, state = mixer(weights, *inputs)
    weights = MixerWeights(**weights)
    slots = pool.allocate(4)
    outputs = [pool.mixer_prefill(slots[:1], [90], weights, *rows(inputs, 0, 90))]
    first = 90
    for length in [1] * 20 + [2, 8]:  # the convolution's columns and the log are carried on
        outputs.append(pool.mixer_decode(slots[:1], [length], weights, *rows(inputs, first, first + length)))
        first += length
    pool.import_states(slots[1:2], pool.export_states(slots[:1]))
    pool.copy(slots[:1], slots[2:3])
    ends = [pool.mixer_prefill([slot], [10], weights, *rows(inputs, first, 130)) for slot in slots[:3]]
    assert all(np.array_equal(end, ends[0]) for end in ends)
    assert distance(np.concatenate([*outputs, ends[0]]), expected) <= TOLERANCE
    assert distance(pool.state(slots[0]), state) <= TOLERANCE


def test_a_pool_takes_the_steps_that_it_was_made_for(pool):
    weights, inputs = mixer_problem(12, 3)
    with pytest.raises(InvalidArgument, match="the pool has no convolution; make it with conv_width") as refusal:
        pool.mixer_prefill(pool.allocate(1), [3], MixerWeights(**weights), *inputs)
    assert refusal.value.reason == "INPUT_KIND_MISMATCH"
    mixing = Context(threads=1).pool(1, conv_width=3, hidden_size=64, **DIMS)
    with pytest.raises(InvalidArgument, match="the pool has a convolution; use gdn_mixer_prefill"):
        mixing.prefill(mixing.allocate(1), [3], *problem(12, 3))
    with pytest.raises(InvalidArgument, match=r"conv_weight is of rank 2, \[176, 4\]; expected \[C, W\], \[176, 3\]"):
        mixing.mixer_decode([0], [3], MixerWeights(**weights), *inputs)
    weights["conv_weight"] = weights["conv_weight"][:, :3]
    weights["a_log"] = weights["a_log"].astype(np.float16)
    with pytest.raises(InvalidArgument, match="a_log is F16; expected float32"):
        mixing.mixer_decode([0], [3], MixerWeights(**weights), *inputs)


def test_refusals_say_what_was_expected(pool):
    q, k, v, g, beta = problem(8, 4)
    [slot] = pool.allocate(1)
    with pytest.raises(InvalidArgument, match=r"k is of rank 3, \[4, 2, 23\]; expected \[tokens, H, K\]") as refusal:
        pool.prefill([slot], [4], q, k[:, :, :23], v, g, beta)
    assert refusal.value.reason == "INVALID_TENSOR_SHAPE"
    assert isinstance(refusal.value, ValueError)
    copy = pickle.loads(pickle.dumps(refusal.value))
    assert (copy.code, copy.reason, str(copy)) == (1, refusal.value.reason, str(refusal.value))
    with pytest.raises(TypeError, match="g is float64; expected float32 or float16"):
        pool.prefill([slot], [4], q, k, v, g.astype(np.float64), beta)
    with pytest.raises(InvalidArgument, match=r"sequence 0 is 9; expected 0 \.\. 8, max_decode_tokens"):
        pool.decode([slot], [9], *problem(8, 9))
    with pytest.raises(InvalidArgument, match="is not in use; allocate it first"):
        pool.prefill([slot + 1], [4], q, k, v, g, beta)
    with pytest.raises(OutOfMemory, match="8 slots are asked for and 7 of 8 are free"):
        pool.allocate(8)
    with pytest.raises(DataLoss):
        pool.import_states([slot], b"no file")
    with pytest.raises(ValueError, match=r"expected \[HV, K, V\], \[4, 24, 20\]"):
        pool.set_state(slot, np.zeros((1, 2, 3)), 0)
    assert pool.tokens(slot) == 0


def test_one_nan_stays_in_its_sequence(pool):
    inputs = problem(9, 40)
    inputs[2][3] = np.nan
    slots = pool.allocate(2)
    output = pool.prefill(slots, [20, 20], *inputs)
    assert np.isnan(output[3:20]).all()
    assert np.isfinite(output[20:]).all()
    assert np.isfinite(pool.state(slots[1])).all()


def test_threads_share_a_pool(pool):
    inputs = problem(10, 64)
    expected = pool.prefill(pool.allocate(1), [64], *inputs)
    results = {}

    def run(slot):
        for _ in range(20):
            pool.zero([slot])
            results[slot] = pool.prefill([slot], [64], *inputs)

    threads = [threading.Thread(target=run, args=(slot,)) for slot in pool.allocate(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(np.array_equal(output, expected) for output in results.values())


def test_a_pool_keeps_its_context():
    pool = Context(threads=1).pool(1, **DIMS)
    gc.collect()
    assert pool.allocate(1) == [0]
    assert "1 slots of 4 x 24 x 20" in repr(pool)


def test_without_the_library_an_import_error_says_what_to_do():
    code = "from gdn_inprocess import Context\nContext()"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GDN_LIBRARY": "/nowhere/libgdn.so", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "set GDN_LIBRARY to its path" in run.stderr
