#!/usr/bin/env python3
"""Checks that no shipped Python code takes torch's default dtype or device by accident.

    tests/python_sources/check_torch_factories.py [ROOT | --self-test]

A user may call torch.set_default_dtype or torch.set_default_device. So each call that makes a tensor out of nothing says
which dtype and which device it has. Functions that take both from a tensor (zeros_like, new_empty) are not looked at.
"""

import ast
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from source_checks import files_of, main, read_lines  # noqa: E402

FOLDERS = ("capi/python/src/", "client/python/src/")
# They follow the default dtype, the default device or both.
FACTORIES = {
    *("arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "complex", "empty", "empty_permuted"),
    *("empty_strided", "eye", "full", "hamming_window", "hann_window", "kaiser_window", "linspace", "logspace"),
    *("ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor", "tril_indices"),
    *("triu_indices", "zeros"),
}
# Old constructors, which take nothing else than defaults.
CONSTRUCTORS = {"Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "IntTensor", "LongTensor"}
ALLOWED_WITHOUT_DTYPE = {"as_tensor", "asarray"}  # of a tensor they keep it


def is_torch(node):
    """Whether an expression is the module: torch, torch_module or sys.modules["torch"]."""
    if isinstance(node, ast.Name):
        return node.id in ("torch", "torch_module")
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "torch"


def errors_of(source):
    """[(line, what is wrong)]"""
    errors = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            errors += [
                (node.lineno, f"imports {alias.name} from torch; call it as torch.{alias.name}")
                for alias in node.names
                if alias.name in FACTORIES
            ]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not is_torch(node.func.value):
            continue
        name = node.func.attr
        given = {keyword.arg for keyword in node.keywords}
        if name in CONSTRUCTORS and (node.args or node.keywords):
            errors.append((node.lineno, f"torch.{name} takes the defaults; call torch.tensor with dtype and device"))
        if name not in FACTORIES:
            continue
        missing = [each for each in ("dtype", "device") if each not in given]
        if name in ALLOWED_WITHOUT_DTYPE and "dtype" in missing:
            missing.remove("dtype")
        if missing:
            errors.append((node.lineno, f"torch.{name} without {' and '.join(missing)} takes torch's default"))
    return errors


def check_tree(root):
    count, errors = 0, []
    for path in files_of(root, {"build"}):
        if not path.startswith(FOLDERS) or not path.endswith(".py"):
            continue
        count += 1
        errors += [f"{path}:{line}: {what}" for line, what in errors_of("\n".join(read_lines(root, path)))]
    return count, errors


AT = "capi/python/src/package/"
PLANTED = [
    (AT + "good.py", 'import torch\nx = torch.zeros(2, dtype=torch.int32, device="cpu")\ny = torch.zeros_like(x)\n', None),
    (AT + "numpy_is_another.py", "import numpy as np\nx = np.zeros(2)\n", None),
    (AT + "dtype.py", 'import torch\nx = torch.empty(2, device="cpu")\n', AT + "dtype.py:2: torch.empty without dtype"),
    (AT + "device.py", "import torch\nx = torch.tensor([1], dtype=torch.int32)\n", AT + "device.py:2: torch.tensor without device"),
    (AT + "both.py", "import torch\nx = torch.randn(2)\n", AT + "both.py:2: torch.randn without dtype and device"),
    (AT + "module.py", 'import sys\nx = sys.modules["torch"].ones(2)\n', AT + "module.py:2: torch.ones"),
    (AT + "old.py", "import torch\nx = torch.Tensor(2)\n", AT + "old.py:2: torch.Tensor takes the defaults"),
    (AT + "imported.py", "from torch import zeros\n", AT + "imported.py:1: imports zeros"),
    ("tests/elsewhere.py", "import torch\nx = torch.zeros(2)\n", None),
]

if __name__ == "__main__":
    sys.exit(main(__doc__, check_tree, PLANTED, sys.argv[1:]))
