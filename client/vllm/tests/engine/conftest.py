"""Real engines of vLLM on the CPU, each with a gdn_server of its own."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[3]
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, in which the tests can look
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
sys.path[:0] = [str(HERE), str(REPOSITORY / "client" / "python" / "tests")]
HAS_VLLM = importlib.util.find_spec("vllm") is not None
# The tests' gdn_server. The plugin reads an address from the same variable.
PROGRAM = os.environ.pop("GDN_SERVER", "") if HAS_VLLM else ""
collect_ignore_glob = [] if PROGRAM else ["test_*.py"]


@dataclass
class Tried:
    """An engine and its server.

    Attributes:
        llm: the vLLM engine.
        server: the gdn_server, as the Python client's tests have it.
        folder: the model.

    """

    llm: Any
    server: Any
    folder: Path

    @property
    def runtime(self) -> Any:
        from gdn_vllm.layer import runtime_of

        return runtime_of(self.llm.llm_engine.vllm_config)

    def generate(self, prompts: list[list[int]], tokens: int) -> list[Any]:
        import vllm

        how = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [answer.outputs[0] for answer in self.llm.generate(given, how, use_tqdm=False)]

    def check(self, prompts: list[list[int]], tokens: int, name: str) -> int:
        """Generates, compares with transformers, and returns the number of equal tokens, which are all."""
        import tiny

        got = [list(answer.token_ids) for answer in self.generate(prompts, tokens)]
        want = tiny.greedy(self.folder, prompts, tokens)
        pairs = [(a, b) for own, other in zip(got, want, strict=True) for a, b in zip(own, other, strict=True)]
        equal = sum(a == b for a, b in pairs)
        counts = self.runtime.counts
        rate = counts.step_calls / max(1, counts.steps * tiny.GDN_LAYERS)
        print(
            f"\n{name}: {equal} of {len(prompts) * tokens} tokens equal, {rate:.2f} calls a layer and step, "
            f"{counts.housekeeping} housekeeping calls in {counts.steps} steps, at most {counts.most} in one"
        )
        assert got == want
        return equal


@contextlib.contextmanager
def server_of(folder: Path, model: Path, *flags: str) -> Iterator[Any]:
    import server

    os.environ["GDN_SERVER"] = PROGRAM
    try:
        with server.running(folder, "--model", f"tiny={model}", *flags) as one:
            restart = one.start

            def start() -> None:
                os.environ["GDN_SERVER"] = PROGRAM
                restart()

            one.start = start
            os.environ.pop("GDN_SERVER")
            yield one
    finally:
        os.environ.pop("GDN_SERVER", None)


@contextlib.contextmanager
def engine_of(model: Path, target: str, **options: Any) -> Iterator[Any]:
    import vllm
    from vllm.distributed import cleanup_dist_env_and_memory

    gdn = {"server": target, "retry_seconds": 10, **options.pop("gdn", {})}
    given: dict[str, Any] = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "gpu_memory_utilization": 0.2,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "additional_config": {"gdn": gdn},
    }
    llm = vllm.LLM(**{**given, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    import tiny

    made: dict[str, Path] = {}

    def model(family: str) -> Path:
        """Returns the folder of a tiny model. The name may end with "!" for one that repeats itself."""
        if family not in made:
            folder = tmp_path_factory.mktemp(family.rstrip("!"))
            made[family] = tiny.make(family.rstrip("!"), folder, scale=0.03 if family.endswith("!") else 0.12)
        return made[family]

    return model


@pytest.fixture()
def tried(models: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Tried]]:
    with contextlib.ExitStack() as stack:

        def make(family: str = "qwen3_next", flags: tuple[str, ...] = (), **options: Any) -> Tried:
            folder = models(family)
            where = tmp_path / f"server{len(list(tmp_path.iterdir()))}"
            where.mkdir()
            server = stack.enter_context(server_of(where, folder, *flags))
            return Tried(stack.enter_context(engine_of(folder, server.target, **options)), server, folder)

        yield make
