"""The operators of gdn_parity in NumPy and float64, in their plainest form, from the formulas of the layer alone.

OPERATORS gives each kind of operator its function: of a row of a dump, with its inputs and attributes, to its outputs. For
scripts/check_parity_dump.py.
"""

import numpy as np


def sigmoid(x):
    return np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x)))


def softplus(x):
    return np.where(x > 20.0, x, np.log1p(np.exp(np.minimum(x, 20.0))))


def l2norm(x, epsilon=1e-6):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + epsilon)


def log_decay(a, a_log, dt_bias, convention, lower_bound=0.0):
    """a, dt_bias [.., HV], or [.., HV, K] where decays go by channel; a_log [HV]. A lower bound below 0: the bounded gate."""
    rate = a_log if convention == "negative_exp" else -np.exp(a_log)
    if dt_bias.ndim > rate.ndim:
        rate = rate[:, None]
    if lower_bound < 0.0:
        return lower_bound * sigmoid(-rate * (a + dt_bias))
    return rate * softplus(a + dt_bias)


def recurrence(q, k, v, g, beta, state):
    """One token after another, all heads at once: q, k [T, H, K], v [T, HV, V], beta [T, HV], state [HV, K, V].

    g is [T, HV], or [T, HV, K] where each key channel decays by its own.
    """
    group = v.shape[1] // q.shape[1]
    output = np.zeros(v.shape)
    for t in range(v.shape[0]):
        k_t = np.repeat(k[t], group, axis=0)
        q_t = np.repeat(q[t], group, axis=0)
        decay = np.exp(g[t])
        state = decay.reshape(decay.shape + (1,) * (3 - decay.ndim)) * state
        u = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k_t))
        state = state + k_t[:, :, None] * u[:, None, :]
        output[t] = np.einsum("hkv,hk->hv", state, q_t)
    return output, state


def unary(row):
    functions = {
        "exp": np.exp,
        "log": np.log,
        "sigmoid": sigmoid,
        "silu": lambda x: x * sigmoid(x),
        "softplus": softplus,
        "neg": np.negative,
        "scale": lambda x: x * float(row["factor"]),
    }
    return {"y": functions[row["f"]](row.x)}


def binary(row):
    a, b = row.a, row.b
    results = {"add": a + b, "sub": a - b, "mul": a * b, "abs_diff": np.abs(a - b), "squared_diff": (a - b) ** 2}
    return {"y": results[row["f"]]}


def reduce(row):
    x, y = row.x, row.y
    results = {
        "sum": x.sum(),
        "max": x.max(),
        "abs_diff_sum": np.abs(x - y).sum(),
        "abs_diff_max": np.abs(x - y).max(),
        "squared_diff_sum": ((x - y) ** 2).sum(),
    }
    return {"result": np.array([results[row["f"]]])}


def bf16_round_trip(row):
    """Eight bits of significand, to nearest, ties to even: each number scaled to a whole number of its last place."""
    exponent = np.frexp(row.x)[1]
    unit = np.ldexp(1.0, exponent - 8)
    return {"y": np.rint(row.x / unit) * unit}


def vector_multiply(row):
    return {"y": row.x * (row.v[None, :] if row["vector"] == "row" else row.v[:, None])}


def transpose(row):
    return {"y": np.swapaxes(row.x, 1, 2)}


def gemm(row):
    turned = {"nn": "bik,bkj->bij", "nt": "bik,bjk->bij", "tn": "bki,bkj->bij"}
    return {"c": np.einsum(turned[row["layout"]], row.a, row.b)}


def tril(row):
    """What is masked may be NaN in the input."""
    kept = np.tri(*row.x.shape[1:], int(row["diagonal"]), dtype=bool)
    return {"y": np.where(kept, row.x, 0.0)}


def eye(row):
    return {"y": np.broadcast_to(np.eye(*row.outputs["y"].shape[1:]), row.outputs["y"].shape)}


def apply_identity(row):
    return {"y": np.eye(row.x.shape[1]) + float(row["sign"]) * row.x}


def clamped(g):
    """Log decays as sums take them: exp(-1000) is 0, and a lower one would cost the digits of those after it."""
    return np.maximum(g, -1000.0)


def decay_mask(row):
    sums = clamped(row.g).cumsum(1)
    left = np.minimum(sums[:, :, None] - sums[:, None, :], 0.0)
    return {
        "mask": np.tril(np.exp(left)),
        "from_start": np.exp(sums),
        "to_end": np.exp(sums[:, -1:] - sums),
    }


def l2norm_forward(row):
    return {"y": l2norm(row.x, float(row["epsilon"]))}


def l2norm_backward(row):
    r = 1.0 / np.sqrt((row.x**2).sum(-1, keepdims=True) + float(row["epsilon"]))
    return {"dx": r * row.dy - row.x * r**3 * (row.dy * row.x).sum(-1, keepdims=True)}


def qk_l2norm(row):
    return {"q": l2norm(row.q) * float(row["scale"]), "k": l2norm(row.k)}


def cumsum(row):
    chunk = int(row["chunk"]) or row.x.shape[0]
    if row.x.shape[0] == 0:
        return {"y": row.x}
    return {"y": np.concatenate([row.x[i : i + chunk].cumsum(0) for i in range(0, row.x.shape[0], chunk)])}


def varlen_index(row):
    lengths = np.diff(row.cu_seqlens).astype(int)
    chunks = -(-lengths // int(row["chunk"]))
    results = {
        "lengths": lengths,
        "position_ids": np.concatenate([np.arange(n) for n in lengths]),
        "sequence_ids": np.repeat(np.arange(len(lengths)), lengths),
        "chunk_offsets": np.concatenate([[0], chunks.cumsum()]),
    }
    return {"index": results[row["f"]].astype(np.float64)}


def qkvz_split(row):
    heads, value_heads = int(row["key_heads"]), int(row["value_heads"])
    key_dim, value_dim = int(row["key_dim"]), int(row["value_dim"])
    rows, group = row.qkvz.shape[0], value_heads // heads
    if row["layout"] == "flat":
        keys, values = heads * key_dim, value_heads * value_dim
        mixed, z = np.split(row.qkvz, [2 * keys + values], axis=1)
        b, a = np.split(row.ba, 2, axis=1)
        return {"mixed_qkv": mixed, "z": z, "b": b, "a": a}
    cuts = np.cumsum([key_dim, key_dim, group * value_dim])
    q, k, v, z = np.split(row.qkvz.reshape(rows, heads, -1), cuts, axis=2)
    b, a = np.split(row.ba.reshape(rows, heads, 2 * group), 2, axis=2)
    flat = [x.reshape(rows, -1) for x in (q, k, v, z, b, a)]
    return {"mixed_qkv": np.concatenate(flat[:3], axis=1), "z": flat[3], "b": flat[4], "a": flat[5]}


def causal_conv1d(row):
    width = row.weight.shape[1]
    y, columns = np.zeros(row.x.shape), []
    for i, (begin, end) in enumerate(row.spans()):
        seen = np.concatenate([row.columns[i].T, row.x[begin:end]])
        for t in range(begin, end):
            total = np.einsum("wc,cw->c", seen[t - begin : t - begin + width], row.weight)
            y[t] = total * sigmoid(total)
        columns.append(seen[len(seen) - width + 1 :].T)
    return {"y": y, "columns": np.stack(columns)}


def gating(row):
    g = log_decay(row.a, row.a_log, row.dt_bias, row["convention"], float(row["lower_bound"]))
    return {"g": g, "beta": float(row["beta_scale"]) * sigmoid(row.b)}


def delta_rule(row):
    output, states = np.zeros(row.v.shape), []
    for i, (begin, end) in enumerate(row.spans()):
        part = slice(begin, end)
        output[part], state = recurrence(
            row.q[part], row.k[part], row.v[part], row.g[part], row.beta[part], row.initial_state[i]
        )
        states.append(state)
    return {"output": output, "final_state": np.stack(states)}


def sigmoid_gating_recurrent(row):
    g = log_decay(row.a, row.a_log, row.dt_bias, "raw")
    q, k, beta = l2norm(row.q) * float(row["scale"]), l2norm(row.k), sigmoid(row.b)
    results = [
        recurrence(q[b:e], k[b:e], row.v[b:e], g[b:e], beta[b:e], row.initial_state[i])
        for i, (b, e) in enumerate(row.spans())
    ]
    return {"output": np.concatenate([r[0] for r in results]), "final_state": np.stack([r[1] for r in results])}


def sums_in_chunks(row):
    sums = np.zeros(row.g.shape)
    for _, first, last in row.chunks():
        sums[first:last] = clamped(row.g[first:last]).cumsum(0)
    return sums


def scores(row, left, right, weight, g_sum, diagonal):
    """[chunks, HV, C, C]: weight_i (left_i . right_j) e^{G_i - G_j}, j < i or j <= i."""
    value_heads = g_sum.shape[1]
    group = value_heads // left.shape[1]
    size = int(row["chunk_tokens"])
    out = np.zeros((len(row.chunks()), value_heads, size, size))
    for c, (_, first, last) in enumerate(row.chunks()):
        for i in range(first, last):
            for j in range(first, i + diagonal):
                dots = np.repeat((left[i] * right[j]).sum(-1), group)
                out[c, :, i - first, j - first] = weight[i] * dots * np.exp(g_sum[i] - g_sum[j])
    return out


def chunk_decay_sums(row):
    return {"g_sum": sums_in_chunks(row)}


def cumsum_kkt(row):
    sums = sums_in_chunks(row)
    return {"g_sum": sums, "a": scores(row, row.k, row.k, row.beta, sums, 0)}


def chunk_kkt(row):
    sums = row.decay_sums() if row["decays"] == "1" else np.zeros(row.beta.shape)
    return {"a": scores(row, row.k, row.k, row.beta, sums, 0)}


def chunk_decay_mask(row):
    ones = np.ones((row.g_sum.shape[0], 1, 1))
    sums = row.decay_sums()
    return {"mask": scores(row, ones, ones, np.ones(sums.shape), sums, 1)}


def chunk_attention(row):
    sums = row.decay_sums()
    return {"attention": scores(row, row.q, row.k, np.ones(sums.shape), sums, 1)}


def unit_lower_inverse(row):
    size = row.a.shape[-1]
    return {"a": np.linalg.inv(np.eye(size) + np.tril(row.a, -1))}


def causal_solve(row):
    size = row.a.shape[-1]
    return {"x": np.linalg.solve(np.eye(size) - np.tril(row.a, -1), row.b)}


def wy(row):
    sums, group = row.decay_sums(), row.v.shape[1] // row.k.shape[1]
    w = np.zeros((row.k.shape[0], row.v.shape[1], row.k.shape[2]))
    u = np.zeros(row.v.shape)
    for c, (_, first, last) in enumerate(row.chunks()):
        n, part = last - first, slice(first, last)
        k = np.repeat(row.k[part], group, axis=1) * (row.beta[part] * np.exp(sums[part]))[:, :, None]
        t = row.t[c, :, :n, :n]
        w[part] = np.einsum("hij,jhk->ihk", t, k)
        u[part] = np.einsum("hij,jhv->ihv", t, row.v[part] * row.beta[part][:, :, None])
    return {"w": w, "u": u}


def chunk_state(row):
    sums, group = row.decay_sums(), row.u.shape[1] // row.k.shape[1]
    states, h, v_new = row.initial_state.copy(), [], np.zeros(row.u.shape)
    for sequence, first, last in row.chunks():
        part, state = slice(first, last), states[sequence]
        h.append(state.copy())
        v_new[part] = row.u[part] - np.einsum("ihk,hkv->ihv", row.w[part], state)
        k = np.repeat(row.k[part], group, axis=1) * np.exp(sums[last - 1] - sums[part])[:, :, None]
        states[sequence] = np.exp(sums[last - 1])[:, None, None] * state + np.einsum("ihk,ihv->hkv", k, v_new[part])
    return {"h": np.stack(h), "v_new": v_new, "final_state": states}


def chunk_output(row):
    sums, group = row.decay_sums(), row.v_new.shape[1] // row.q.shape[1]
    output = np.zeros(row.v_new.shape)
    for c, (_, first, last) in enumerate(row.chunks()):
        n, part = last - first, slice(first, last)
        q = np.repeat(row.q[part], group, axis=1) * np.exp(sums[part])[:, :, None]
        output[part] = np.einsum("ihk,hkv->ihv", q, row.h[c])
        output[part] += np.einsum("hij,jhv->ihv", row.attention[c, :, :n, :n], row.v_new[part])
    return {"output": output}


OPERATORS = {
    "unary": unary,
    "binary": binary,
    "reduce": reduce,
    "bf16_round_trip": bf16_round_trip,
    "vector_multiply": vector_multiply,
    "transpose": transpose,
    "gemm": gemm,
    "tril": tril,
    "eye": eye,
    "apply_identity": apply_identity,
    "decay_mask": decay_mask,
    "l2norm": l2norm_forward,
    "l2norm_backward": l2norm_backward,
    "qk_l2norm": qk_l2norm,
    "cumsum": cumsum,
    "varlen_index": varlen_index,
    "qkvz_split": qkvz_split,
    "causal_conv1d": causal_conv1d,
    "gating": gating,
    "delta_rule": delta_rule,
    "sigmoid_gating_recurrent": sigmoid_gating_recurrent,
    "chunk_decay_sums": chunk_decay_sums,
    "cumsum_kkt": cumsum_kkt,
    "chunk_kkt": chunk_kkt,
    "chunk_decay_mask": chunk_decay_mask,
    "chunk_attention": chunk_attention,
    "unit_lower_inverse": unit_lower_inverse,
    "causal_solve": causal_solve,
    "wy": wy,
    "chunk_state": chunk_state,
    "chunk_output": chunk_output,
}
