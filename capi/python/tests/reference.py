"""The gated delta rule in float64, token by token, and random problems for it."""

import numpy as np

# Of the norm: the chunked form's, as gdn_parity has it for float32; and what rounding inputs and outputs costs.
TOLERANCE = 5e-6
TOLERANCES = {"float32": TOLERANCE, "float16": 1e-3, "bfloat16": 8e-3}


def problem(seed, tokens, key_heads=2, value_heads=4, key_dim=24, value_dim=20, decay_per_channel=False):
    """q, k, v, g, beta of so many rows, float32."""
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((2, tokens, key_heads, key_dim))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = random.standard_normal((tokens, value_heads, value_dim))
    g = random.uniform(-1, 0, (tokens, value_heads, *[key_dim] * decay_per_channel))
    beta = random.uniform(0, 1, (tokens, value_heads))
    return [x.astype(np.float32) for x in (q, k, v, g, beta)]


def delta_rule(q, k, v, g, beta, state=None, scale=None, use_qk_l2norm=False):
    """(output [tokens, HV, V], state [HV, K, V]) of one sequence."""
    q, k, v, g, beta = (np.asarray(x, np.float64) for x in (q, k, v, g, beta))
    if use_qk_l2norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    group = v.shape[1] // q.shape[1]
    q, k = (np.repeat(x, group, axis=1) for x in (q, k))
    scale = k.shape[2] ** -0.5 if scale is None else scale
    s = np.zeros((v.shape[1], k.shape[2], v.shape[2])) if state is None else np.array(state, np.float64)
    output = np.empty(v.shape)
    for t in range(v.shape[0]):
        s *= np.exp(g[t]).reshape(v.shape[1], -1, 1)
        u = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", s, k[t]))
        s += np.einsum("hk,hv->hkv", k[t], u)
        output[t] = scale * np.einsum("hkv,hk->hv", s, q[t])
    return output, s


def mixer_problem(seed, tokens, key_heads=2, value_heads=4, key_dim=24, value_dim=20, conv_width=4):
    """Weights by name, and mixed_qkv, z, b, a of so many rows; float32."""
    random = np.random.default_rng(seed)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    weights = {
        "conv_weight": random.standard_normal((channels, conv_width)) / 2,
        "a_log": random.uniform(-4, 1, value_heads),
        "dt_bias": random.standard_normal(value_heads),
        "norm_weight": random.standard_normal(value_dim),
    }
    inputs = [
        random.standard_normal((tokens, channels)),
        random.standard_normal((tokens, value_heads, value_dim)),
        random.standard_normal((tokens, value_heads)),
        random.standard_normal((tokens, value_heads)),
    ]
    return {name: x.astype(np.float32) for name, x in weights.items()}, [x.astype(np.float32) for x in inputs]


def mixer(weights, mixed_qkv, z, b, a, key_heads=2, epsilon=1e-6):
    """(output [tokens, HV, V], state [HV, K, V]) of one sequence, from its beginning."""
    conv_weight, a_log, dt_bias, norm_weight = (np.asarray(x, np.float64) for x in weights.values())
    x, z, b, a = (np.asarray(x, np.float64) for x in (mixed_qkv, z, b, a))
    tokens, (heads, value_dim) = x.shape[0], z.shape[1:]
    taps = conv_weight.shape[1]
    padded = np.concatenate((np.zeros((taps - 1, x.shape[1])), x))
    convolved = sum(padded[w : w + tokens] * conv_weight[:, w] for w in range(taps))
    convolved /= 1 + np.exp(-convolved)
    keys = (x.shape[1] - heads * value_dim) // 2
    q, k, v = np.split(convolved, [keys, 2 * keys], axis=1)
    q, k = (part.reshape(tokens, key_heads, -1) for part in (q, k))
    g = -np.exp(a_log) * np.logaddexp(0, a + dt_bias)
    beta = 1 / (1 + np.exp(-b))
    o, state = delta_rule(q, k, v.reshape(tokens, heads, value_dim), g, beta, use_qk_l2norm=True)
    o /= np.sqrt((o * o).mean(-1, keepdims=True) + epsilon)
    return o * norm_weight * z / (1 + np.exp(-z)), state


def distance(actual, expected):
    """Relative, of the norm; infinite where something is not finite."""
    actual = np.asarray(actual, np.float64)
    if actual.shape != np.shape(expected) or not np.isfinite(actual).all():
        return np.inf
    return np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), 1e-30)
