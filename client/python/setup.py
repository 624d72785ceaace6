"""Compiles the API's messages while the package is built: a set of descriptors, modules that read it, and their types.

Descriptors and no generated code: what protoc generates is bound to one version of protobuf, descriptors are not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PACKAGE = "gdn_client.proto"
FOLDERS = ("gdn/v1", "google/rpc")
MODULE = '''"""The messages of {proto}; made while the package was built."""

from {package} import load

load("{proto}", globals())
'''


def proto_folder() -> Path:
    """Of the repository, or of an sdist, which has a copy."""
    for folder in (HERE / "proto", HERE.parent.parent / "proto"):
        if (folder / "gdn" / "v1" / "service.proto").exists():
            return folder
    raise FileNotFoundError("the API's .proto files are neither in ./proto nor in ../../proto")


def compile_messages(target: Path) -> None:
    """Writes descriptors.binpb and a module for each .proto file to `target`, the folder of gdn_client.proto."""
    protos = proto_folder()
    files = sorted(str(path.relative_to(protos)) for folder in FOLDERS for path in (protos / folder).glob("*.proto"))
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as types:
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={protos}"),
                *("--include_imports", f"--descriptor_set_out={target / 'descriptors.binpb'}"),
                *(f"--pyi_out={types}", *files),
            ],
            check=True,
        )
        for proto in files:
            module = target / (proto.removesuffix(".proto") + "_pb2.py")
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_text(MODULE.format(proto=proto, package=PACKAGE))
            stub = (Path(types) / (proto.removesuffix(".proto") + "_pb2.pyi")).read_text()
            for folder in FOLDERS:
                package = folder.replace("/", ".")
                stub = stub.replace(f"from {package} import", f"from {PACKAGE}.{package} import")
            module.with_suffix(".pyi").write_text(stub)
    for folder in FOLDERS:
        for part in (Path(folder).parent, Path(folder)):
            (target / part / "__init__.py").write_text("")


def ring_folder() -> Path:
    """The folder above `ring`: of the repository, or of an sdist, which has a copy."""
    return HERE if (HERE / "ring" / "gdn_ring.c").exists() else HERE.parent.parent


def ring_module() -> Extension:
    """A client's side of rings, in C. Where it cannot be built, the client goes without."""
    root = os.path.relpath(ring_folder(), HERE)
    return Extension(
        "gdn_client._ring",
        ["src/gdn_client/ring.c", f"{root}/ring/gdn_ring.c", f"{root}/ring/process_mark.c"],
        include_dirs=[root],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if sys.version_info >= (3, 11) else [],
        py_limited_api=sys.version_info >= (3, 11),
        extra_compile_args=["-std=c11", "-O2"],
        optional=True,
    )


class BuildMessages(build_py):
    """build_py, and the messages."""

    def run(self) -> None:
        root = HERE / "src" if self.editable_mode else Path(self.build_lib)
        compile_messages(root / "gdn_client" / "proto")
        super().run()

    def check_package(self, package: str, package_dir: str) -> str | None:
        # Those that compile_messages makes need not be in the source tree.
        if package.startswith(PACKAGE + "."):
            return None
        return super().check_package(package, package_dir)


class CopyProtos(sdist):
    """sdist, with the .proto files and the ring's C sources, which are outside of this folder."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        # Sources outside of this folder would go outside of the release's tree; they are copied below.
        super().make_release_tree(base_dir, [file for file in files if not file.startswith(os.pardir)])
        shutil.copytree(proto_folder(), Path(base_dir) / "proto", dirs_exist_ok=True)
        shutil.copytree(ring_folder() / "ring", Path(base_dir) / "ring", dirs_exist_ok=True)


setup(
    cmdclass={"build_py": BuildMessages, "sdist": CopyProtos},
    ext_modules=[ring_module()],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if sys.version_info >= (3, 11) else {},
)
