#!/usr/bin/env python3
"""Other projects' kernels beside ours, in one run.

  bench_peers.py --bench=build/cpu/bin/gdn_bench --json=FILE [--backend=cpu|gpu] [--test-backend-ops=PROGRAM] [--ggml=FOLDER]
                 [--rounds=5] [--min-time=0.2] [--filter=REGEX]

Each round times a case of `gdn_bench kernel`, then the same work by each peer that is installed, so that both meet the same
machine; the ratio (ours / theirs) is the median over rounds. Peers:

  ggml          --test-backend-ops, or test-backend-ops on the PATH: the operator GATED_DELTA_NET of llama.cpp, on the CPU or
                the GPU of that build. It finds its state in a cache (it repeats one step), gives each value head a key head of
                its own, and normalises q and k.
  ggml-mul-mat  --ggml, a folder with llama.cpp's libggml-base.so and libggml-cpu.so, on the CPU: MUL_MAT of 512 rows and quantised
                weights, which rounds its inputs as our int8 cases do.
  fla           flash-linear-attention, where torch and a GPU are: fused_recurrent_gated_delta_rule and chunk_gated_delta_rule,
                for KDA fused_recurrent_kda and chunk_kda, float32, replayed as a CUDA graph; states in a cache. fla-bf16: the
                same with bfloat16 inputs.
  transformers  Qwen3NextGatedDeltaNet in bfloat16 with that library's kernels, as a CUDA graph: a whole layer. Our cases
                `narrow` have bfloat16 inputs too, the others float32 ones.

The error of a peer is that of its outputs for the first tokens of the case's first sequence, by the relative Euclidean norm against
double precision with the same inputs. It is left out where a peer gives no outputs (ggml) or starts from a cache (a layer's decode).

A peer that is not there is left out and named on stderr. Exits 1 where gdn_bench fails, or no peer could be run.
"""

import argparse
import copy
import ctypes
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HEADS, VALUE_HEADS, DIM, HIDDEN, CONV = 16, 32, 128, 2048, 4
ERROR_TOKENS = 2048  # most tokens of a sequence whose error is measured


def shape_of(case):
    """(what, KDA or not, key heads, value heads, sequences, tokens) of a case of gdn_bench, or ("projection", format); None where no
    peer has the like."""
    if match := re.fullmatch(r"projection_sequence_gemm/(\w+)/int8/rows=512", case):
        return "projection", match[1]
    match = re.fullmatch(r"(decode_deferred|decode_hot|prefill_chunk|layer_decode/BF16|layer_prefill/BF16)/(?:narrow/)?"
                         r"(HV=4/|H=32/|H=32,kda/)?(?:B=(\d+))?/?(?:T=(\d+))?", case)
    if match is None:
        return None
    what, dims, sequences, tokens = match.groups()
    heads = {None: (HEADS, VALUE_HEADS), "HV=4/": (2, 4)}.get(dims, (32, 32))
    return what, dims == "H=32,kda/", *heads, int(sequences or 1), int(tokens or 1)


def delta_rule_float64(torch, q, k, v, g, beta, state):
    """Outputs [tokens, heads, V] of one sequence in double precision, token by token. q has its scale; g: [tokens, heads] or
    [tokens, heads, K]; state: [heads, K, V]."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    decay = g.exp().reshape(*g.shape[:2], -1, 1)
    outputs = []
    for t in range(q.shape[0]):
        state = state * decay[t]
        update = beta[t, :, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + k[t, :, :, None] * update[:, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state))
    return torch.stack(outputs)


def relative_error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


class Ggml:
    """llama.cpp's operator, by its own benchmark."""

    def __init__(self, program, backend):
        found = program or shutil.which("test-backend-ops")
        if not found:
            raise LookupError("no test-backend-ops: pass --test-backend-ops=PROGRAM")
        self.name = "ggml"
        self.version = "llama.cpp's test-backend-ops"
        self.command = [found, "perf", "-o", "GATED_DELTA_NET"]
        if backend == "cpu":
            self.command += ["-b", "CPU"]

    def time_us(self, shape):
        if shape[0] == "projection":
            return None
        what, kda, _, value_heads, sequences, tokens = shape
        if what not in ("decode_deferred", "decode_hot", "prefill_chunk") or sequences != 1:
            return None
        sought = f"head_count={value_heads},head_size={DIM},n_seq_tokens={tokens},n_seqs=1,v_repeat=1,permuted=0,kda={int(kda)},K=1"
        out = subprocess.run(self.command + ["-p", sought], capture_output=True, text=True, check=False).stdout
        found = re.search(re.escape(sought) + r"\).*?([0-9.]+) us/run", out)
        return float(found.group(1)) if found else None

    def error(self, _):
        return None


class GgmlMulMat:
    """llama.cpp's product of quantised weights, with the weights in the file's order, as its own benchmark has them."""

    ROWS, OUTPUTS = 512, 8192
    TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}

    class InitParams(ctypes.Structure):
        _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    def __init__(self, folder, backend, min_time):
        if not folder or backend != "cpu":
            raise LookupError("no ggml on the CPU: pass --ggml=FOLDER")
        import numpy
        self.np, self.min_time, self.threads = numpy, min_time, len(os.sched_getaffinity(0))
        folder = pathlib.Path(folder)
        try:
            self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
            self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
        except OSError as error:
            raise LookupError(f"no ggml: {error}") from error
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.cpu.ggml_cpu_init()
        for name, result, arguments in (("ggml_init", pointer, [self.InitParams]), ("ggml_free", None, [pointer]),
                                        ("ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, integer, integer]),
                                        ("ggml_get_data", pointer, [pointer]), ("ggml_mul_mat", pointer, [pointer] * 3),
                                        ("ggml_new_graph", pointer, [pointer]),
                                        ("ggml_build_forward_expand", None, [pointer] * 2),
                                        ("ggml_nbytes", ctypes.c_size_t, [pointer]),
                                        ("ggml_quantize_chunk", ctypes.c_size_t,
                                         [ctypes.c_int, pointer, pointer, integer, integer, integer, pointer])):
            function = getattr(self.base, name)
            function.restype, function.argtypes = result, arguments
        self.cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]
        self.name = "ggml-mul-mat"
        self.version = "llama.cpp's libggml-cpu"
        self.format = self.context = None

    def make(self, kind):
        if self.context is not None:
            self.base.ggml_free(self.context)
        np, base = self.np, self.base
        self.format = kind
        self.context = base.ggml_init(self.InitParams(512 << 20, None, False))
        random = np.random.default_rng(7)
        weights = random.standard_normal((self.OUTPUTS, HIDDEN), np.float32)
        self.x = random.uniform(-1, 1, (self.ROWS, HIDDEN)).astype(np.float32)
        self.w = base.ggml_new_tensor_2d(self.context, self.TYPES[kind], HIDDEN, self.OUTPUTS)
        base.ggml_quantize_chunk(self.TYPES[kind], weights.ctypes.data, base.ggml_get_data(self.w), 0, self.OUTPUTS, HIDDEN, None)
        x = base.ggml_new_tensor_2d(self.context, 0, HIDDEN, self.ROWS)
        ctypes.memmove(base.ggml_get_data(x), self.x.ctypes.data, self.x.nbytes)
        self.y = base.ggml_mul_mat(self.context, self.w, x)
        self.graph = base.ggml_new_graph(self.context)
        base.ggml_build_forward_expand(self.graph, self.y)
        self.run()

    def run(self):
        if self.cpu.ggml_graph_compute_with_ctx(self.context, self.graph, self.threads) != 0:
            raise RuntimeError("ggml could not compute the product")

    def time_us(self, shape):
        if shape[0] != "projection" or shape[1] not in self.TYPES:
            return None
        if self.format != shape[1]:
            self.make(shape[1])
        times, end = [], time.perf_counter() + self.min_time
        while not times or time.perf_counter() < end:
            begun = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - begun)
        return statistics.median(times) * 1e6

    def error(self, shape):
        if shape[1] != "Q8_0":
            return None
        np = self.np
        blocks = np.frombuffer(ctypes.string_at(self.base.ggml_get_data(self.w), self.base.ggml_nbytes(self.w)),
                               dtype=[("d", "<f2"), ("q", "i1", 32)]).reshape(self.OUTPUTS, -1)
        weights = (blocks["q"].astype(np.float64) * blocks["d"].astype(np.float64)[..., None]).reshape(self.OUTPUTS, HIDDEN)
        expected = self.x.astype(np.float64) @ weights.T
        actual = np.frombuffer(ctypes.string_at(self.base.ggml_get_data(self.y), expected.size * 4), np.float32).reshape(expected.shape)
        return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


class Graph:
    """What a call takes on the device, replayed as a graph."""

    def __init__(self, call, min_time):
        import torch
        self.torch = torch
        self.call = call  # keeps what the graph reads and writes
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            call()
        torch.cuda.synchronize()
        self.count = 1
        self.count = max(5, min(20000, int(min_time * 1e6 / max(self.time_us(), 1.0))))

    def time_us(self):
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(self.count):
            self.graph.replay()
        end.record()
        cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.count


class Fla:
    """flash-linear-attention's operators."""

    def __init__(self, dtype, min_time):
        import torch
        if not torch.cuda.is_available():
            raise LookupError("torch sees no GPU")
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
        self.torch, self.dtype, self.min_time = torch, getattr(torch, dtype), min_time
        from fla.ops.kda import chunk_kda, fused_recurrent_kda
        # By whether it is KDA, and whether it is a prefill.
        self.operators = {(False, True): chunk_gated_delta_rule, (False, False): fused_recurrent_gated_delta_rule,
                          (True, True): chunk_kda, (True, False): fused_recurrent_kda}
        self.name = "fla" if dtype == "float32" else "fla-bf16"
        self.version = f"flash-linear-attention {importlib.metadata.version('flash-linear-attention')}, torch {torch.__version__}"
        self.graphs = {}

    def time_us(self, shape):
        if shape[0] not in ("decode_deferred", "decode_hot", "prefill_chunk"):
            return None
        key = (shape[0] == "prefill_chunk", *shape[1:])
        if key not in self.graphs:
            self.graphs.clear()  # one case's memory at a time
            self.graphs[key] = self.make(*key)
        return self.graphs[key].time_us()

    def error(self, shape):
        q, k, v, g, beta, state = (x[0] for x in self.inputs)
        most = min(q.shape[0], ERROR_TOKENS)
        expected = delta_rule_float64(self.torch, q[:most].double() * DIM**-0.5, k[:most], v[:most], g[:most], beta[:most], state)
        return relative_error(self.run()[0][0, :most], expected)

    def make(self, prefill, kda, heads, value_heads, sequences, tokens):
        torch = self.torch
        make = lambda *size: torch.randn(*size, device="cuda", dtype=self.dtype)
        normal = torch.nn.functional.normalize
        q, k = (normal(make(sequences, tokens, heads, DIM), dim=-1) for _ in range(2))
        if heads != value_heads:  # the operators want a key head for each value head
            q, k = (x.repeat_interleave(value_heads // heads, dim=2).contiguous() for x in (q, k))
        v = make(sequences, tokens, value_heads, DIM)
        g = -0.1 * torch.rand(sequences, tokens, value_heads, *([DIM] if kda else []), device="cuda")
        beta = torch.rand(sequences, tokens, value_heads, device="cuda").to(self.dtype)
        state = 0.1 * torch.randn(sequences, value_heads, DIM, DIM, device="cuda")
        call = self.operators[kda, prefill]
        self.inputs = q, k, v, g, beta, state
        self.run = lambda: call(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True)
        return Graph(self.run, self.min_time)


class Transformers:
    """A layer of Qwen3-Next as Hugging Face's library runs it."""

    def __init__(self, min_time):
        import torch
        if not torch.cuda.is_available():
            raise LookupError("torch sees no GPU")
        from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet
        self.torch, self.min_time = torch, min_time
        self.config = Qwen3NextConfig(hidden_size=HIDDEN, linear_num_key_heads=HEADS, linear_num_value_heads=VALUE_HEADS,
                                      linear_key_head_dim=DIM, linear_value_head_dim=DIM, linear_conv_kernel_dim=CONV)
        self.layer = Qwen3NextGatedDeltaNet(self.config, layer_idx=0).to("cuda", torch.bfloat16).eval()
        self.name = "transformers"
        self.version = f"transformers {importlib.metadata.version('transformers')}"
        self.graphs = {}

    def time_us(self, shape):
        if shape[0] not in ("layer_prefill/BF16", "layer_decode/BF16"):
            return None
        if shape not in self.graphs:
            with self.torch.no_grad():
                self.graphs[shape] = Graph(self.call(*shape), self.min_time)
        return self.graphs[shape].time_us()

    def error(self, shape):
        if shape[0] != "layer_prefill/BF16":
            return None
        with self.torch.no_grad():
            return relative_error(self.layer(self.hidden[:1])[0], self.float64(self.hidden[:1]))

    def float64(self, hidden):
        """The layer's output for one sequence, [tokens, hidden]."""
        functional, layer, tokens = self.torch.nn.functional, copy.deepcopy(self.layer).double(), hidden.shape[1]
        hidden = hidden.double()
        parts = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden))
        z, b, a = parts[3:]
        mixed = self.torch.cat([part.reshape(1, tokens, -1) for part in parts[:3]], dim=-1).transpose(1, 2)
        mixed = functional.silu(layer.conv1d(mixed)[:, :, :tokens]).transpose(1, 2)[0]
        q, k, v = mixed.split([HEADS * DIM, HEADS * DIM, VALUE_HEADS * DIM], dim=-1)
        unit = lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        q, k = (unit(x.reshape(tokens, HEADS, DIM)).repeat_interleave(VALUE_HEADS // HEADS, dim=1) for x in (q, k))
        v = v.reshape(tokens, VALUE_HEADS, DIM)
        g = -layer.A_log.double().exp() * functional.softplus(a[0].reshape(tokens, VALUE_HEADS) + layer.dt_bias)
        state = self.torch.zeros(VALUE_HEADS, DIM, DIM, device=hidden.device)
        out = delta_rule_float64(self.torch, q * DIM**-0.5, k, v, g, b[0].reshape(tokens, VALUE_HEADS).sigmoid(), state)
        out = out * (out.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt() * layer.norm.weight
        return layer.out_proj((out * functional.silu(z[0].reshape(tokens, VALUE_HEADS, DIM))).reshape(tokens, -1))

    def call(self, what, _, __, ___, sequences, tokens):
        torch = self.torch
        hidden = self.hidden = torch.randn(sequences, tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        if what == "layer_prefill/BF16":
            return lambda: self.layer(hidden)
        from transformers.cache_utils import DynamicCache
        cache = DynamicCache(config=self.config)  # its states stay where they are, so a graph can hold them
        self.layer(hidden.expand(sequences, CONV, HIDDEN), cache)
        return lambda: self.layer(hidden, cache)


def peers(options):
    makers = [lambda: Ggml(options.test_backend_ops, options.backend), lambda: GgmlMulMat(options.ggml, options.backend, options.min_time)]
    if options.backend != "cpu":
        makers += [lambda: Fla("float32", options.min_time), lambda: Fla("bfloat16", options.min_time),
                   lambda: Transformers(options.min_time)]
    for make in makers:
        try:
            yield make()
        except (LookupError, ImportError, RuntimeError) as error:
            print(f"bench_peers: left out: {error}", file=sys.stderr)


def ours_us(options, case):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([options.bench, "kernel", f"--backend={options.backend}", f"--filter=^{re.escape(case)}$", "--repeat=3",
                        f"--min-time={options.min_time / 3}", f"--json={file.name}"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return json.load(open(file.name, encoding="utf-8"))["cases"][0]["time_us"]["median"]


def measure(options, case, everyone):
    """The rounds of a case: ours, then each peer."""
    shape = shape_of(case)
    rounds, errors = {}, {}
    able = [peer for peer in everyone if shape is not None]
    for _ in range(options.rounds):
        ours = None
        for peer in list(able):
            try:
                theirs = peer.time_us(shape)
            except Exception as error:  # a peer's failure is told, and is no failure of the others
                print(f"bench_peers: {peer.name} failed at {case}: {error}", file=sys.stderr)
                theirs = None
            if theirs is None:
                able.remove(peer)
                continue
            if ours is None:
                ours = ours_us(options, case)
            rounds.setdefault(peer.name, []).append((ours, theirs))
            if peer.name not in errors:
                try:
                    errors[peer.name] = peer.error(shape)
                except Exception as error:
                    print(f"bench_peers: the error of {peer.name} at {case} is unknown: {error}", file=sys.stderr)
                    errors[peer.name] = None
    return {name: {**({} if errors[name] is None else {"error": errors[name]}),
                   "ours_us": statistics.median(o for o, _ in pairs), "time_us": statistics.median(t for _, t in pairs),
                   "ratio": statistics.median(o / t for o, t in pairs), "least": min(o / t for o, t in pairs),
                   "most": max(o / t for o, t in pairs)} for name, pairs in rounds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--test-backend-ops", default="")
    parser.add_argument("--ggml", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--min-time", type=float, default=0.2)
    parser.add_argument("--filter", default="")
    options = parser.parse_args()
    everyone = list(peers(options))
    if not everyone:
        sys.exit("bench_peers: no peer is installed")
    names = subprocess.run([options.bench, "kernel", f"--backend={options.backend}", "--list", f"--filter={options.filter}"],
                           check=True, capture_output=True, text=True).stdout.split()
    cases = {}
    for case in names:
        found = measure(options, case, everyone)
        if not found:
            continue
        cases[case] = found
        print(f"{case:34}" + "  ".join(f"{name} {row['ours_us']:.1f} / {row['time_us']:.1f} us = {row['ratio']:.2f}"
                                       for name, row in found.items()), flush=True)
        with open(options.json, "w", encoding="utf-8") as file:  # after each case: a run may be cut short
            json.dump({"peers": {peer.name: peer.version for peer in everyone}, "rounds": options.rounds, "cases": cases}, file,
                      indent=1)
    if not cases:
        sys.exit("bench_peers: no peer has a case of these")


if __name__ == "__main__":
    main()
