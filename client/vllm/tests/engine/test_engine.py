"""Engines whose Gated DeltaNet layers are remote generate what transformers generates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny import SMALL_BLOCKS, recording_of

import gdn_client

pytestmark = pytest.mark.engine
Make = Callable[..., Any]
HERE = str(Path(__file__).resolve().parent)


def calls_of(server: Any) -> dict[str, int]:
    """Returns how often each method of the server was called."""
    with gdn_client.Client(server.target) as client:
        lines = client.metrics().splitlines()
    counts: dict[str, int] = {}
    for line in lines:
        if line.startswith("gdn_rpc_duration_seconds_count{"):
            method = line.split('method="')[1].split('"')[0]
            counts[method] = counts.get(method, 0) + int(float(line.split()[-1]))
    return counts


def sessions_of(server: Any) -> int:
    with gdn_client.Client(server.target) as client:
        return int(client.info().session_count)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"])
def test_families(tried: Make, family: str) -> None:
    one = tried(family)
    one.check(tiny.prompts([5, 9, 17, 3, 30, 12]), 32, family)
    calls = calls_of(one.server)
    assert calls["Step"] == one.runtime.counts.steps * tiny.GDN_LAYERS
    assert one.runtime.counts.housekeeping == 1, "none in steady decode"


def test_chunked_prefill_and_continuous_batching(tried: Make) -> None:
    one = tried("qwen3_5", max_num_batched_tokens=16, max_num_seqs=3, gdn=recording_of("chunked"))
    one.check(tiny.prompts([5, 40, 17, 33, 30, 12, 70, 8]), 32, "chunked prefill, 8 prompts on 3 slots")
    assert calls_of(one.server)["Step"] == one.runtime.counts.steps * tiny.GDN_LAYERS
    assert one.runtime.counts.most <= 2


def test_preemption(tried: Make) -> None:
    one = tried(block_size=32, num_gpu_blocks_override=22, gdn=recording_of("preemption"))
    one.check(tiny.prompts([30, 28, 31, 25, 29, 30, 27, 31]), 64, "preemption")
    assert calls_of(one.server)["CreateSessions"] > 1, "nothing was preempted"


def test_abort(tried: Make) -> None:
    import vllm

    one = tried(gdn=recording_of("abort"))
    engine, prompts = one.llm.llm_engine, tiny.prompts([5, 9, 17, 3, 30, 12, 8, 6])
    how = vllm.SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, detokenize=False)
    for at, prompt in enumerate(prompts):
        engine.add_request(str(at), {"prompt_token_ids": prompt}, how)
    got: dict[str, list[int]] = {}
    steps = 0
    while engine.has_unfinished_requests():
        for answer in engine.step():
            got[answer.request_id] = list(answer.outputs[0].token_ids)
        steps += 1
        if steps == 10:
            engine.abort_request(["3"])
    want = tiny.greedy(one.folder, prompts, 32)
    equal = [got[str(at)] == want[at] for at in range(8) if at != 3]
    print(f"\nabort: {sum(equal)} of 7 others equal")
    assert all(equal)


def test_prefix_caching(tried: Make) -> None:
    one = tried(**SMALL_BLOCKS, gdn=recording_of("prefix"))
    common = tiny.prompts([100])[0]
    first = [common + own for own in tiny.prompts([5, 9], seed=2)]
    later = [common + own for own in tiny.prompts([7, 12, 3, 5], seed=3)]
    one.check(first, 32, "prefix caching, first")
    before = calls_of(one.server)
    one.check(later, 32, "prefix caching, hits")
    one.check([prompt[:70] for prompt in later], 32, "prefix caching, shorter hits")
    after = calls_of(one.server)
    with gdn_client.Client(one.server.target) as client:
        print(f"snapshots {len(client.snapshots().snapshots)}, calls {after}")
    hits = one.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.prefix_cache_stats
    print(hits)
    assert after["SnapshotSessions"] > before["SnapshotSessions"]
    assert one.runtime.counts.most <= 2


def test_prefix_caching_with_preemption(tried: Make) -> None:
    one = tried(**SMALL_BLOCKS, num_gpu_blocks_override=34, gdn=recording_of("prefix_preemption"))
    common = tiny.prompts([64])[0]
    prompts = [common + own for own in tiny.prompts([30, 28, 31, 25, 29, 30, 27, 31], seed=4)]
    one.check(prompts, 64, "prefix caching with preemption")


@pytest.mark.parametrize("cached", [False, True], ids=["", "prefix caching"])
def test_async_scheduling(tried: Make, cached: bool) -> None:
    options: dict[str, Any] = {**SMALL_BLOCKS, "num_gpu_blocks_override": 30} if cached else {}
    one = tried(async_scheduling=True, gdn=recording_of("async_prefix" if cached else "async"), **options)
    common = tiny.prompts([64])[0] if cached else []
    prompts = [common + own for own in tiny.prompts([30, 28, 31, 25, 29, 30, 27, 31], seed=6)]
    one.check(prompts, 64, f"async scheduling{' and prefix caching, preemptions' if cached else ''}")


def test_snapshots_are_evicted_under_a_small_budget(tried: Make) -> None:
    one = tried(flags=("--snapshot-bytes=200000",), **SMALL_BLOCKS)
    common = tiny.prompts([160])[0]
    for seed in range(4):
        prompts = [common + own for own in tiny.prompts([40, 50], seed=seed)]
        one.check(prompts, 40, f"small budget of snapshots, round {seed}")
    one.check([common + own for own in tiny.prompts([5, 9, 12], seed=9)], 32, "small budget, the beginning again")
    with gdn_client.Client(one.server.target) as client:
        told = client.snapshots()
        print(f"snapshots {len(told.snapshots)}, lost {len(told.lost)}")
        assert told.lost


def test_a_lost_snapshot_is_computed_again(tried: Make) -> None:
    one = tried(**SMALL_BLOCKS)
    common = tiny.prompts([100])[0]
    one.check([[*common, 1, 2, 3]], 8, "before snapshots are lost")
    with gdn_client.Client(one.server.target) as client:
        keys = [snapshot.key for snapshot in client.snapshots().snapshots]
        assert keys
        client.delete_snapshots(keys)
    one.check([common + own for own in tiny.prompts([5, 9], seed=8)], 32, "after snapshots were lost")


@pytest.mark.parametrize(("scheduling", "durable"), [("sync", False), ("async", False), ("sync", True)])
def test_a_server_that_is_killed(tried: Make, tmp_path: Path, durable: bool, scheduling: str) -> None:
    import threading

    flags = ("--disk-dir", str(tmp_path / "states"), "--checkpoint-every-tokens=8") if durable else ()
    one = tried(flags=flags, async_scheduling=scheduling == "async")
    prompts = tiny.prompts([5, 9, 17, 3, 30, 12])
    one.generate(prompts, 2)

    def kill() -> None:
        for _ in range(2):
            time.sleep(0.5)
            one.server.kill()
            time.sleep(0.1)
            one.server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    one.check(prompts, 120, f"server killed twice, {scheduling}, {'disk' if durable else 'memory'}")
    killer.join()


def test_without_a_server_requests_fail_and_the_engine_lives(tried: Make) -> None:
    one = tried(gdn={"retry_seconds": 1})
    prompts = tiny.prompts([5, 9])
    one.check(prompts, 8, "with a server")
    one.server.kill()
    answers = one.generate(prompts, 8)
    print([(answer.finish_reason, answer.stop_reason) for answer in answers])
    assert all(answer.finish_reason == "error" for answer in answers)
    one.server.start()
    one.check(prompts, 8, "with a server again")


ENGINE = """
import json, sys, tiny, vllm
llm = vllm.LLM(model=sys.argv[1], skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=512,
               gpu_memory_utilization=0.2, enable_prefix_caching=True, block_size=32,
               additional_config={"gdn": {"server": sys.argv[2], "grace_seconds": 2}})
times, lengths, tokens = json.loads(sys.argv[3])
how = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
for _ in range(times):
    given = [{"prompt_token_ids": prompt} for prompt in tiny.prompts(lengths)]
    answers = llm.generate(given, how, use_tqdm=False)
print("TOKENS", json.dumps([list(answer.outputs[0].token_ids) for answer in answers]))
"""


def other_engine(folder: Path, target: str, times: int, lengths: list[int], tokens: int) -> subprocess.Popen[str]:
    """Starts an engine in a process of its own, because vLLM has one connector in a process."""
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), HERE]
    return subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(folder), target, json.dumps([times, lengths, tokens])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_two_engines_on_one_server(tried: Make) -> None:
    one = tried()
    lengths = [5, 9, 17, 40]
    other = other_engine(one.folder, one.server.target, 3, lengths, 64)
    try:
        rounds = 0
        while other.poll() is None and rounds < 40:
            one.check(tiny.prompts([5, 9, 17], seed=rounds), 16, f"two engines, round {rounds} of the first")
            rounds += 1
        told = other.communicate(timeout=120)[0]
    finally:
        other.kill()
    found = json.loads(told.split("TOKENS ")[1].splitlines()[0])
    want = tiny.greedy(one.folder, tiny.prompts(lengths), 64)
    print(f"\ntwo engines, the second: {4 * 64 if found == want else 'not all'} of 256 tokens equal")
    assert found == want
    assert rounds > 1


def test_an_engine_that_is_killed_leaves_nothing(models: Callable[[str], Path], tmp_path: Path) -> None:
    import conftest

    with conftest.server_of(tmp_path, models("qwen3_next")) as server:
        engine = other_engine(models("qwen3_next"), server.target, 1000, [40] * 8, 400)
        try:
            until = time.monotonic() + 120
            while sessions_of(server) < 8 and time.monotonic() < until:
                time.sleep(0.2)
            assert sessions_of(server) >= 8
        finally:
            engine.kill()
            engine.wait()
        killed = time.monotonic()
        while sessions_of(server) > 0 and time.monotonic() < killed + 20:
            time.sleep(0.2)
        print(f"\nengine killed: {sessions_of(server)} sessions left after {time.monotonic() - killed:.1f} s")
        assert sessions_of(server) == 0


@pytest.mark.parametrize("sliced", [True, False], ids=["a slice of the heads each", "one whole server"])
def test_tensor_parallel(
    models: Callable[[str], Path], tmp_path: Path, sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import contextlib

    import conftest

    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # vLLM wants a NUMA node for each rank otherwise

    folder = models("qwen3_next")
    with contextlib.ExitStack() as stack:
        targets = []
        for at, flags in enumerate([("--heads=0-1/4",), ("--heads=2-3/4",)] if sliced else [()]):
            where = tmp_path / str(at)
            where.mkdir()
            targets.append(stack.enter_context(conftest.server_of(where, folder, *flags)).target)
        llm = stack.enter_context(conftest.engine_of(folder, ",".join(targets), tensor_parallel_size=2))
        prompts = tiny.prompts([5, 9, 17, 3, 30, 12, 8, 6])
        got = [list(answer.token_ids) for answer in conftest.Tried(llm, None, folder).generate(prompts, 32)]
        want = tiny.greedy(folder, prompts, 32)
        equal = sum(a == b for own, other in zip(got, want, strict=True) for a, b in zip(own, other, strict=True))
        print(f"\ntensor parallel 2, {'slices' if sliced else 'one server'}: {equal} of 256 tokens equal")
        assert got == want


def test_torch_compile(tried: Make) -> None:
    one = tried(enforce_eager=False, compilation_config={"mode": 3, "backend": "inductor"})
    one.check(tiny.prompts([5, 9, 17, 3, 30, 12, 8, 6]), 32, "torch.compile")


def test_layers_on_two_servers(models: Callable[[str], Path], tmp_path: Path) -> None:
    import contextlib

    import conftest

    folder = models("qwen3_next")
    with contextlib.ExitStack() as stack:
        servers = []
        for at, layers in enumerate(["--layers=0-1", "--layers=3"]):
            where = tmp_path / str(at)
            where.mkdir()
            servers.append(stack.enter_context(conftest.server_of(where, folder, layers)))
        target = ",".join(server.target for server in servers)
        llm = stack.enter_context(conftest.engine_of(folder, target, **SMALL_BLOCKS))
        one = conftest.Tried(llm, servers[0], folder)
        one.check(tiny.prompts([5, 9, 17, 3, 70, 12]), 32, "layers on two servers")
        one.check(tiny.prompts([5, 9, 17, 3, 70, 12]), 32, "layers on two servers, hits")


def test_another_checkpoint_is_refused(models: Callable[[str], Path], tmp_path: Path) -> None:
    import shutil

    import conftest
    import safetensors.torch

    other = tmp_path / "other"
    shutil.copytree(models("qwen3_next"), other)
    file = other / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["model.layers.1.linear_attn.out_proj.weight"] += 1
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    (tmp_path / "server").mkdir()
    with (
        conftest.server_of(tmp_path / "server", models("qwen3_next")) as server,
        pytest.raises(ValueError, match="layer 1 of the checkpoint has other weights"),
        conftest.engine_of(other, server.target),
    ):
        pass
