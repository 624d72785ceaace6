"""The Gated DeltaNet kernels of gdn-service in this process, over libgdn.

    pool = Context().pool(64, key_heads=16, value_heads=32, key_dim=128, value_dim=128)
    [slot] = pool.allocate(1)
    output = pool.prefill([slot], [tokens], q, k, v, g, beta)

That is for numpy arrays; torch's operators are in gdn_inprocess.torch_ops.
"""

from gdn_inprocess.abi import (
    DataLoss,
    DeviceFailed,
    FailedPrecondition,
    GdnError,
    InvalidArgument,
    OutOfMemory,
    gpu_name,
    version,
)
from gdn_inprocess.pool import Context, MixerWeights, Pool

__all__ = [
    "Context",
    "DataLoss",
    "DeviceFailed",
    "FailedPrecondition",
    "GdnError",
    "InvalidArgument",
    "MixerWeights",
    "OutOfMemory",
    "Pool",
    "gpu_name",
    "version",
]
