"""The Gated DeltaNet kernels of gdn-service in this process, through libgdn.

    pool = Context().pool(64, key_heads=16, value_heads=32, key_dim=128, value_dim=128)
    [slot] = pool.allocate(1)
    output = pool.prefill([slot], [tokens], q, k, v, g, beta)

This is the interface for numpy arrays. gdn_inprocess.torch_ops has the torch operators, and gdn_inprocess.torch is the
convenient way to call them.
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
