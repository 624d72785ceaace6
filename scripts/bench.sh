#!/usr/bin/env bash
# Times the kernels against this machine's limits and, where they are installed, against other projects' kernels in the same
# run, and writes docs/evidence/performance.md with its plots.
#
#   scripts/bench.sh [cpu|gpu] [--name=NAME] [--test-backend-ops=PROGRAM] [--ggml=FOLDER]     (default: cpu)
#
# The run is kept as docs/evidence/performance/NAME.json (default: cpu or gpu). Close other programs first. A GPU is that of preset
# hip-gfx906, or of PRESET (cuda). llama.cpp's test-backend-ops is taken from the PATH unless it is given, its libggml-*.so only
# from the folder that is given; FLA and transformers are imported by PYTHON (python3).
#
# Environment: PRESET, PYTHON, REPEAT (15 rounds a case), PEER_ROUNDS (5), GDN_BENCH and GDN_PARITY (programs that are built already), JOBS.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

backend=cpu name="" ops="" ggml=""
for argument in "$@"; do
  case "${argument}" in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    cpu | gpu) backend="${argument}" ;;
    --name=*) name="${argument#*=}" ;;
    --test-backend-ops=*) ops="${argument#*=}" ;;
    --ggml=*) ggml="${argument#*=}" ;;
    *) die "unknown argument '${argument}'; see --help" ;;
  esac
done
[[ -z "${ops}" ]] || ops="$(realpath -- "${ops}")"
[[ -z "${ggml}" ]] || ggml="$(realpath -- "${ggml}")"
cd "${repo_root}"
python="${PYTHON:-python3}"
bench="${GDN_BENCH:-}"
if [[ -z "${bench}" ]]; then
  preset="${PRESET:-$([[ ${backend} == gpu ]] && echo hip-gfx906 || echo cpu)}"
  if [[ "${preset}" == hip-gfx906 ]]; then scripts/setup.sh --hip; else scripts/setup.sh; fi
  cmake --preset "${preset}" >/dev/null
  cmake --build --preset "${preset}" --parallel "$(default_jobs)" --target gdn_bench gdn_parity
  bench="build/${preset}/bin/gdn_bench"
fi
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

note "kernels against the machine's limits"
"${bench}" kernel --backend="${backend}" --repeat="${REPEAT:-15}" --json="${work}/run.json"
"${bench}" kernel --backend="${backend}" --repeat="${REPEAT:-15}" --state-dtype=bf16 --filter='^(decode_deferred|layer_decode)/' \
  --json="${work}/bf16.json"
note "errors against double precision"
parity="${GDN_PARITY:-$(dirname "${bench}")/gdn_parity}"
for suite in delta_rule kda layer layer_ops; do "${parity}" --backend="${backend}" --suite="${suite}"; done > "${work}/parity.txt"
note "kernels beside other projects'"
peers=()
if "${python}" scripts/bench_peers.py --bench="${bench}" --backend="${backend}" --rounds="${PEER_ROUNDS:-5}" \
    --filter='^(decode_(deferred|hot)|prefill_chunk|layer_(decode|prefill)|projection_sequence_gemm/.*/int8)' \
    --test-backend-ops="${ops}" --ggml="${ggml}" --json="${work}/peers.json"; then
  peers=(--peers "${work}/peers.json")
fi
python3 scripts/performance_page.py --add "${name:-${backend}}" "${work}/run.json" "${work}/bf16.json" --parity "${work}/parity.txt" "${peers[@]}"
python3 scripts/performance_page.py --write
