#!/usr/bin/env python3
"""Fails where the sources break a rule of ARCHITECTURE.md that a compiler does not check.

  check_arrows.py [ROOT]       check the tree at ROOT (default: the repository this file is in)
  check_arrows.py --self-test  plant one violation of each rule in a small tree and see each reported

Rules: a file includes only files of its own node, of base, and of the nodes its node may look at (NODES); includes name a file of
the repository in quotes and from its root; gRPC and protobuf stay in the nodes that speak the protocol; vendor `#if`s stay in the GPU
seam; a file that uses a macro of base/status_macros.h includes it itself; a C++ file has lines of at most MAX_COLUMNS characters,
and says in its first line what it is unless a header of its name does; CMake lists its sources.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import source_checks  # noqa: E402

MAX_COLUMNS = 120

# Named sets of nodes, for the table below.
STATES = ["state_store", "state_store/state_file", "state_store/tiers"]
SERVED_KERNELS = ["kernels", "kernels/operators", "kernels/gpu", "kernels/layer", "kernels/cpu", "kernels/gpu_backend",
                  "kernels/null"]
SETS = {"the states": STATES, "the served kernels": SERVED_KERNELS}
ANYTHING = "anything"

# The nodes: their folders ("x/*" is every folder below x, "x" the files in x itself; the first match wins), what they are,
# and which nodes they may include beside `base` and themselves. scripts/generate_docs.py writes the table of ARCHITECTURE.md
# from this one.
NODES = [
    # node, folders, what it is, what it may include
    ("base", ["base", "base/*"], "errors with reasons, dtypes, tensor views, safetensors, hashing, threads, flags, version, the order of eviction", []),
    ("proto", ["gdn/v1", "google/rpc"], "the API's messages, generated from `proto/gdn/v1`", []),
    ("kernels", ["kernels"], "`backend.h`: what a backend must do, and the operators' parameters", ["kernels/operators"]),
    ("kernels/layer", ["kernels/layer"], "a whole layer, made of a backend's operators", ["kernels", "kernels/operators"]),
    ("kernels/cpu", ["kernels/cpu"], "the CPU backend", ["kernels", "kernels/operators"]),
    ("kernels/gpu", ["kernels/gpu", "kernels/gpu/on_host", "kernels/gpu/acquisitions"],
     "the seam that GPU code is written against; the only place that knows vendors; the host executor", []),
    ("kernels/gpu_backend", ["kernels/gpu_backend"], "the GPU backend",
     ["kernels", "kernels/operators", "kernels/gpu"]),
    ("kernels/null", ["kernels/null"], "a backend that computes nothing, to measure the service",
     ["kernels", "kernels/operators"]),
    ("kernels/primitives", ["kernels/primitives/*"], "operators that are studied and checked, never served",
     ["kernels/operators", "kernels/gpu"]),
    ("kernels/operators", ["kernels/*"], "one folder an operator: contract, reference, CPU and GPU version; what they share",
     ["kernels/gpu"]),
    ("state_store", ["state_store"], "slots of state in a backend's memory", ["kernels"]),
    ("state_store/state_file", ["state_store/state_file"], "the file of a session's states", ["state_store", "kernels"]),
    ("state_store/tiers", ["state_store/tiers", "state_store/tiers/*"], "host memory, disk and Redis below the device",
     ["state_store", "state_store/state_file"]),
    ("ring", ["ring"], "rings in shared memory: their form, and a client's side in C", []),
    ("session_rules", ["session_rules"], "which steps and acceptances a session takes, and why it does not take others", []),
    ("capi", ["capi"], "libgdn: kernels and states in the calling process, behind a C interface",
     ["state_store", "state_store/state_file", "kernels", "kernels/operators", "kernels/layer", "kernels/cpu",
      "kernels/gpu_backend"]),
    ("server/config", ["server/config"], "the file of flags, and the forms of their values", ["server/admission"]),
    ("server/observability", ["server/observability"], "logs, the metrics' catalogue, the HTTP port, the status page", []),
    ("server/admission", ["server/admission"], "who holds how many bytes, and whether they may hold more", []),
    ("server/trace", ["server/trace"], "where the time of single calls goes", []),
    ("server/checkpoint", ["server/checkpoint"], "reads checkpoints: families, configs, tensors, formats", []),
    ("server/model", ["server/model"], "loads checkpoints onto a backend; what is served of them",
     ["server/checkpoint", "kernels/layer", "kernels"]),
    ("server/health", ["server/health"], "whether the device still works", []),
    ("server/scheduler", ["server/scheduler"], "decides what runs next on the device", []),
    ("server/session", ["server/session", "server/session/*"], "sessions: who may step, where states are, checkpoints",
     ["session_rules", "server/admission", "server/health", "server/scheduler"] + STATES),
    ("server/fleet", ["server/fleet"], "sessions that go from server to server", ["server/admission", "server/session"] + STATES),
    ("server/batcher", ["server/batcher"], "the engine: runs the backend, launch after launch",
     ["session_rules", "server/health", "server/scheduler", "server/session", "server/trace", "kernels/layer"]),
    ("server/shared_memory", ["server/shared_memory"], "memory that clients on the host put tensors in", []),
    ("server/ring", ["server/ring"], "the server's side of rings: their memory, the socket that hands them out, the poller", ["ring"]),
    ("server/validation", ["server/validation"], "checks requests before anything is allocated or moved", ["proto", "session_rules"]),
    ("server/security", ["server/security"], "TLS, who a caller is, and what it may do", []),
    ("server/rpc", ["server/rpc", "server/rpc/*"], "the gRPC calls",
     ["proto", "server/admission", "server/validation", "server/session", "server/fleet", "server/batcher", "server/ring", "server/shared_memory",
      "server/model", "server/security", "server/trace"] + STATES),
    ("server/options", ["server/options"], "the table of flags, and the options of all parts",
     ["server/admission", "server/config", "server/rpc", "server/validation", "server/session", "server/fleet", "server/batcher",
      "server/ring", "server/shared_memory", "server/model", "server/observability", "server/security", "server/trace", "kernels", "kernels/gpu_backend"]
     + STATES),
    ("server", ["server"], "the assembly of the parts",
     ["proto", "server/admission", "server/config", "server/options", "server/rpc", "server/validation", "server/health", "server/session", "server/fleet", "server/batcher",
      "server/ring", "server/shared_memory", "server/model", "server/observability", "server/security", "server/trace"] + STATES + SERVED_KERNELS),
    ("client", ["client/cpp"], "the C++ client", ["proto", "ring"]),
    ("client/testing", ["client/cpp/testing"], "a server with a toy for a layer, for tests of programs that use the client",
     ["client", "proto", "server/validation", "session_rules"]),
    ("tools/common", ["tools/common"], "child processes and command lines, for the tools", []),
    ("tools/gdnctl", ["tools/gdnctl", "tools/gdnctl/*"], "the command line",
     ["tools/common", "client", "server/checkpoint", "state_store/state_file"]),
    ("tools/gdn_bench", ["tools/gdn_bench", "tools/gdn_bench/*"], "measures",
     ["tools/common", "client", "server/admission", "server/health", "server/scheduler", "server/session"] + STATES + SERVED_KERNELS),
    ("tools/gdn_parity", ["tools/gdn_parity", "tools/gdn_parity/cases"], "compares operators with references",
     ["tools/common", "client", "kernels/primitives"] + SERVED_KERNELS),
    ("tests", ["tests/*"], "", [ANYTHING]),
]
FOLDERS = [(folder, node) for node, folders, _, _ in NODES for folder in folders]
ALLOWED = {node: set(allowed) for node, _, _, allowed in NODES}

# Nodes whose files may include gRPC's and protobuf's own headers.
SPEAKS_PROTOCOL = {
    "proto", "server/rpc", "server/security", "server/validation", "server", "client", "client/testing", "tools/gdnctl", "tools/gdn_bench", "tests"
}

VENDOR_SEAM = "kernels/gpu/device.h"

CPP_SUFFIXES = (".h", ".cc", ".hip", ".inc")
SKIPPED_FOLDERS = {"build", "__pycache__"}

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)')
PROTOCOL_HEADER = re.compile(r"^(grpc/|grpcpp/|google/protobuf/)")
VENDOR_CONDITION = re.compile(
    r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b(?:__HIP\w*|__HIPCC__|__NVCC__|__CUDACC__|__CUDA_ARCH__|__AMDGCN\w*|__gfx\w+)")
ROLE = re.compile(r"_(?:test|reference|cpu|gpu)$")  # what a file is beside the header that it is about
# Macros, and the header that has them.
STATUS_MACROS = [
    (re.compile(r"^(?!\s*(?://|#)).*\b(GDN_RETURN_IF_ERROR|GDN_ASSIGN_OR_RETURN)\("), "base/status_macros.h"),
    (re.compile(r"^(?!\s*(?://|#)).*\b(GDN_CO_RETURN_IF_ERROR|GDN_CO_ASSIGN_OR_RETURN)\("), "base/task/status_macros.h"),
]
CMAKE_GLOB = re.compile(r"\bfile\s*\(\s*GLOB", re.IGNORECASE)


def node_of(path):
    folder = os.path.dirname(path)
    for pattern, node in FOLDERS:
        if folder == pattern or (pattern.endswith("/*") and folder.startswith(pattern[:-1])):
            return node
    return None


def check_include(root, top_folders, path, node, quoted, angled):
    """What is wrong with one include, or None."""
    target = quoted or angled
    if PROTOCOL_HEADER.match(target) and node not in SPEAKS_PROTOCOL:
        return f'{node} -> gRPC or protobuf: "{target}" is not allowed here'
    if quoted is None:
        ours = any(os.path.exists(os.path.join(root, folder, target)) for folder in ("", "tests", "proto"))
        return f"<{target}> is a file of this repository; name it in quotes, from the repository's root" if ours else None
    target_node = node_of(target)
    if target_node != "proto":
        if os.path.exists(os.path.join(root, os.path.dirname(path), target)) and "/" not in target:
            return f'"{target}" is relative; name it from the repository\'s root'
        if target.split("/")[0] not in top_folders:
            return None  # a third party's
        if not os.path.exists(os.path.join(root, target)):
            return f'"{target}" does not exist'
        if target_node is None:
            return f'"{target}" belongs to no node; add it to NODES in tests/arrows/check_arrows.py'
    allowed = ALLOWED[node]
    if target_node in (node, "base") or target_node in allowed or ANYTHING in allowed:
        return None
    return f'{node} -> {target_node}: "{target}" is not an allowed arrow (ARCHITECTURE.md, "Folders and arrows")'


def has_header(root, headers, path):
    """Whether a header says what the source file `path` is: one of its name, without its role; for a test, in any folder."""
    stem = os.path.splitext(path)[0]
    if stem.endswith("_test"):
        return ROLE.sub("", os.path.basename(stem)) in headers
    return any(os.path.exists(os.path.join(root, name + suffix))
               for name in (stem, ROLE.sub("", stem)) for suffix in (".h", "-inl.h"))


def check_cpp(root, top_folders, headers, path, lines):
    node = node_of(path)
    if node is None:
        yield 1, "belongs to no node; add it to NODES in tests/arrows/check_arrows.py"
        return
    says_itself = path.endswith((".h", ".inc")) or (lines and lines[0].startswith("//"))
    if not says_itself and not has_header(root, headers, path):
        yield 1, "no header has its name; open it with a comment that says what it is"
    missing = [(macro, header) for macro, header in STATUS_MACROS
               if not any(INCLUDE.match(line) and header in line for line in lines)]
    for number, line in enumerate(lines, 1):
        for macro, header in missing[:]:
            used = macro.match(line)
            if used:
                yield number, f"uses {used.group(1)} without {header}: it compiles only after a header that has it"
                missing.remove((macro, header))
        if len(line) > MAX_COLUMNS:
            yield number, f"has {len(line)} characters; at most {MAX_COLUMNS}"
        if VENDOR_CONDITION.match(line) and path != VENDOR_SEAM:
            yield number, f"vendor condition outside {VENDOR_SEAM}"
        include = INCLUDE.match(line)
        if include:
            error = check_include(root, top_folders, path, node, include.group(1), include.group(2))
            if error:
                yield number, error


def check_cmake(lines):
    for number, line in enumerate(lines, 1):
        if CMAKE_GLOB.search(line.split("#")[0]):
            yield number, "file(GLOB ...) misses new files until CMake runs again; list the sources"


def check_tree(root):
    """(files read, ["file:line: what is wrong", ...])."""
    top_folders = {e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith(".")} - SKIPPED_FOLDERS
    files = list(source_checks.files_of(root, SKIPPED_FOLDERS))
    headers = {os.path.basename(path)[:-2] for path in files if path.endswith(".h")}
    count, errors = 0, []
    for path in files:
        is_cmake = path.endswith(".cmake") or path.split("/")[-1] == "CMakeLists.txt"
        if not is_cmake and not path.endswith(CPP_SUFFIXES):
            continue
        count += 1
        lines = source_checks.read_lines(root, path)
        found = check_cmake(lines) if is_cmake else check_cpp(root, top_folders, headers, path, lines)
        errors += [f"{path}:{number}: {text}" for number, text in found]
    return count, errors


# (file, contents, the report expected of it, or None where it is allowed)
PLANTED = [
    ("base/error.h", "#include <string>\n", None),
    ("kernels/backend.h", '#include "kernels/gating/gating.h"\n', None),
    ("kernels/gating/gating.h", '#include "base/error.h"\n', None),
    ("kernels/layer/gdn_layer.h", '#include "kernels/backend.h"\n#include "kernels/gating/gating.h"\n', None),
    ("server/session/session.h", '#include "absl/status/status.h"\n#include "base/error.h"\n', None),
    ("server/main.cc", '// X.\n#include "kernels/cpu/cpu_backend.h"\n#include "server/rpc/service.h"\n', None),
    ("server/rpc/service.h", '#include <grpcpp/grpcpp.h>\n#include "gdn/v1/step.pb.h"\n', None),
    ("kernels/cpu/cpu_backend.h", '\n#include "kernels/layer/gdn_layer.h"\n',
     'kernels/cpu/cpu_backend.h:2: kernels/cpu -> kernels/layer: "kernels/layer/gdn_layer.h" is not an allowed arrow'),
    ("base/upward.h", '#include "kernels/backend.h"\n', "base/upward.h:1: base -> kernels: "),
    ("kernels/gating/gating.cc", '#include "gdn/v1/step.pb.h"\n', "kernels/gating/gating.cc:1: kernels/operators -> proto: "),
    ("kernels/gating/rpc.cc", "// X.\n#include <grpcpp/grpcpp.h>\n",
     "kernels/gating/rpc.cc:2: kernels/operators -> gRPC or protobuf: "),
    ("capi/context.cc", '// X.\n#include "kernels/cpu/cpu_backend.h"\n', None),
    ("capi/step.cc", '// X.\n#include "server/session/session.h"\n', "capi/step.cc:2: capi -> server/session: "),
    ("server/batcher/batcher.cc", '// X.\n#  include "kernels/cpu/cpu_backend.h"\n',
     "server/batcher/batcher.cc:2: server/batcher -> kernels/cpu: "),
    ("server/validation/step.cc", '// X.\n#include "server/session/session.h"\n',
     "server/validation/step.cc:2: server/validation -> server/session: "),
    ("tools/gdnctl/main.cc", '// X.\n#include "kernels/backend.h"\n', "tools/gdnctl/main.cc:2: tools/gdnctl -> kernels: "),
    ("tools/gdnctl/inspect.cc", '// X.\n#include "server/checkpoint/checkpoint.h"\n', None),
    ("tools/gdnctl/load.cc", '// X.\n#include "server/model/loaded_model.h"\n', "tools/gdnctl/load.cc:2: tools/gdnctl -> server/model: "),
    ("server/checkpoint/checkpoint.h", '#include "kernels/gating/gating.h"\n',
     "server/checkpoint/checkpoint.h:1: server/checkpoint -> kernels/operators: "),
    ("server/model/loaded_model.h", '#include "server/checkpoint/checkpoint.h"\n', None),
    ("kernels/primitives/gemm/gemm.h", '#include "kernels/gating/gating.h"\n', None),
    ("kernels/gpu_backend/gpu_backend.cc", '// X.\n#include "kernels/primitives/gemm/gemm.h"\n',
     "kernels/gpu_backend/gpu_backend.cc:2: kernels/gpu_backend -> kernels/primitives: "),
    ("server/start.cc", '// X.\n#include "kernels/primitives/gemm/gemm.h"\n', "server/start.cc:2: server -> kernels/primitives: "),
    ("kernels/gating/gating_cpu.cc", '#include "kernels/primitives/gemm/gemm.h"\n',
     "kernels/gating/gating_cpu.cc:1: kernels/operators -> kernels/primitives: "),
    ("base/relative.cc", '// X.\n#include "error.h"\n', 'base/relative.cc:2: "error.h" is relative'),
    ("base/gone.cc", '// X.\n#include "base/gone.h"\n', 'base/gone.cc:2: "base/gone.h" does not exist'),
    ("kernels/gpu/executor.h", "#include <lanes/simt.h>\n", "kernels/gpu/executor.h:1: <lanes/simt.h> is a file of this repository"),
    ("tests/lanes/simt.h", "#include <string>\n", None),
    ("kernels/gpu/borrowed.h", '#include "tests/lanes/simt.h"\n', "kernels/gpu/borrowed.h:1: kernels/gpu -> tests: "),
    ("misc/stray.cc", "int x;\n", "misc/stray.cc:1: belongs to no node"),
    ("kernels/gating/vendor.h", "#if defined(__HIP_PLATFORM_AMD__)\n", "kernels/gating/vendor.h:1: vendor condition"),
    ("kernels/gpu/device.h", "#ifdef __HIPCC__\n", None),
    ("base/wide.h", "\n//" + "x" * MAX_COLUMNS + "\n//" + "x" * (MAX_COLUMNS - 2) + "\n",
     f"base/wide.h:2: has {MAX_COLUMNS + 2} characters"),
    ("base/borrowed.h", "\n\nGDN_RETURN_IF_ERROR(x);\nGDN_RETURN_IF_ERROR(y);\n", "base/borrowed.h:3: uses GDN_RETURN_IF_ERROR"),
    ("base/borrowed_co.h", '#include "base/status_macros.h"\nGDN_CO_RETURN_IF_ERROR(x);\n',
     "base/borrowed_co.h:2: uses GDN_CO_RETURN_IF_ERROR without base/task/status_macros.h"),
    ("base/status_macros.h", "int x;\n", None),
    ("base/nameless.cc", "int x;\n", "base/nameless.cc:1: no header has its name"),
    ("base/told.cc", "// Told.\nint x;\n", None),
    ("base/error.cc", "int x;\n", None),
    ("base/error_reference.cc", "int x;\n", None),
    ("tests/base/error_test.cc", "int x;\n", None),
    ("tests/base/other_test.cc", "int x;\n", "tests/base/other_test.cc:1: no header has its name"),
    ("base/CMakeLists.txt", "# file(GLOB is not used\nfile(GLOB sources *.cc)\n", "base/CMakeLists.txt:2: file(GLOB"),
    ("build/generated.cc", '#include "nowhere.h"\n', None),
]


if __name__ == "__main__":
    sys.exit(source_checks.main(__doc__, check_tree, PLANTED, sys.argv[1:]))
