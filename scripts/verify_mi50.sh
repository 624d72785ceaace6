#!/usr/bin/env bash
# One command for the owner of an MI50 (or another gfx906 card): builds the GPU programs, tests and times them on the card, and writes
# a report to attach to an issue.
#
#   scripts/verify_mi50.sh [--out FILE] [--bin DIR] [--architectures LIST] [--quick] [--force]
#
#   --out FILE            the report (default: build/mi50-report-DATE.txt)
#   --bin DIR             use the programs in DIR, such as a container's /usr/local/bin; nothing is installed or built
#   --architectures LIST  what to build for (default: gfx906)
#   --quick               leave out the bench
#   --force               go on where `gdnctl doctor` finds something missing
#
# Runs every step even where one before it failed, and ends with one line: `verify_mi50: VERIFIED`, `FAILED` or `NOT RUN`. Exit
# codes: 0 verified, 1 a step failed, 2 bad usage, 3 not run, because the node or the build lacks something.
# Functions are run through `step` and `show`, which shellcheck does not follow.
# shellcheck disable=SC2317
set -uo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=hip-gfx906
programs=(gdn_server gdnctl gdn_parity gdn_bench)
tolerance=1e-5
ready_seconds=300
clock_seconds=2  # between two looks at the clocks

usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
bad_usage() {
  echo "${0##*/}: $*; see --help" >&2
  exit 2
}

report="" bin="" architectures=gfx906 quick=false force=false
while (( $# > 0 )); do
  case "$1" in
    --out | --bin | --architectures)
      [[ $# -ge 2 ]] || bad_usage "$1 needs a value"
      case "$1" in --out) report="$2" ;; --bin) bin="$2" ;; *) architectures="$2" ;; esac
      shift
      ;;
    --out=*) report="${1#*=}" ;;
    --bin=*) bin="${1#*=}" ;;
    --architectures=*) architectures="${1#*=}" ;;
    --quick) quick=true ;;
    --force) force=true ;;
    -h | --help) usage; exit 0 ;;
    *) bad_usage "unknown argument '$1'" ;;
  esac
  shift
done

cd "${repo_root}" || exit 2
report="${report:-build/mi50-report-$(date -u +%Y%m%dT%H%M%SZ).txt}"
if ! mkdir -p "$(dirname "${report}")" || ! : >"${report}"; then bad_usage "cannot write '${report}'"; fi
work="$(mktemp -d)" || bad_usage "cannot make a temporary folder"
server_pid="" sampler_pid=""
failed=() summary=()

stop_processes() {
  local pid
  for pid in "${sampler_pid}" "${server_pid}"; do
    [[ -z "${pid}" ]] || { kill "${pid}" 2>/dev/null && wait "${pid}" 2>/dev/null; } || true
  done
  sampler_pid="" server_pid=""
}
cleanup() {
  stop_processes
  rm -rf "${work}"
}
interrupted() {
  say "verify_mi50: FAILED: interrupted; the report so far: ${report}"
  exit 1
}
trap cleanup EXIT
trap interrupted INT TERM

say() { echo "$*" | tee -a "${report}"; }

finish() {  # finish CODE LINE: the verdict
  say ""
  say "verify_mi50: $2; report: ${report}"
  exit "$1"
}

# step NAME COMMAND...: runs it into the report, with its exit code and time; the last lines of its output are also shown where it fails.
step() {
  local name="$1" begin=${SECONDS} rc=0
  shift
  say ""
  say "== ${name}"
  echo "\$ $*" >>"${report}"
  "$@" >"${work}/step" 2>&1 || rc=$?
  cat "${work}/step" >>"${report}"
  say "-- ${name}: exit ${rc}, $(( SECONDS - begin )) s"
  if (( rc != 0 )); then
    failed+=("${name}")
    tail -n 25 "${work}/step"
  fi
  return "${rc}"
}

# A step for the record; what it lacks is no failure.
show() {
  local name="$1"
  shift
  { echo; echo "== ${name}"; "$@" 2>&1 || echo "(exit $?)"; } >>"${report}"
}

machine() {
  date -u +%FT%TZ
  git describe --always --dirty --tags 2>/dev/null
  uname -srm
  grep -m 1 PRETTY_NAME /etc/os-release
  grep -m 1 'model name' /proc/cpuinfo
  grep MemTotal /proc/meminfo
  env | grep -E '^(HIP|ROCR|HSA|AMD|GPU)_' || true
  dpkg-query -W -f '${Package} ${Version}\n' hipcc 'libamdhip64*' 'libhsa-runtime64*' 'libamd-comgr*' 2>/dev/null
  if command -v lspci >/dev/null; then lspci -nn | grep -i '\[1002:'; else echo "no lspci"; fi
  true
}

kernel_log() {
  { dmesg 2>/dev/null || journalctl -k --no-pager 2>/dev/null || echo "not readable as this user"; } |
    grep -i -E 'amdgpu|kfd|readable' | tail -n 60
}

clocks() {
  if command -v rocm-smi >/dev/null; then
    rocm-smi --showclocks --showtemp --showpower --showuse --showperflevel
    return
  fi
  local card file found=false
  for card in /sys/class/drm/card[0-9]*; do
    [[ "$(cat "${card}/device/vendor" 2>/dev/null)" == 0x1002 && "${card}" != *-* ]] || continue
    found=true
    for file in pp_dpm_sclk pp_dpm_mclk power_dpm_force_performance_level gpu_busy_percent current_link_speed current_link_width \
      hwmon/hwmon*/temp*_input hwmon/hwmon*/power1_average hwmon/hwmon*/power1_cap; do
      # The pattern is to be expanded.
      # shellcheck disable=SC2086
      for path in "${card}"/device/${file}; do
        [[ -r "${path}" ]] && sed "s|^|${path#/sys/class/drm/}: |" "${path}"
      done
    done
  done
  "${found}" || echo "no rocm-smi, and no AMD card in /sys/class/drm"
}

# Lines "SECONDS sclk mclk" of the clocks in use, while a step runs.
sample_clocks() {
  while sleep "${clock_seconds}"; do
    echo "$(date +%s) $(cat /sys/class/drm/card*/device/pp_dpm_[sm]clk 2>/dev/null | awk '/\*/ {printf "%s ", $2}')"
  done
}

with_clocks() {  # with_clocks COMMAND...
  local rc=0
  sample_clocks >"${work}/clocks" &
  sampler_pid=$!
  "$@" || rc=$?
  kill "${sampler_pid}" 2>/dev/null
  wait "${sampler_pid}" 2>/dev/null
  sampler_pid=""
  echo "clocks in use meanwhile (how often: shader, memory):"
  cut -d ' ' -f 2- "${work}/clocks" | sort | uniq -c
  return "${rc}"
}

setup_and_build() {
  scripts/setup.sh --hip && cmake --preset "${preset}" "-DGDN_HIP_ARCHITECTURES=${architectures}" -DGDN_BUILD_TESTS=OFF &&
    cmake --build --preset "${preset}" --parallel "$(default_jobs)" --target "$@"
}

start_server() {
  local folder flags=() waited=0
  for folder in tests/golden/qwen3_*; do flags+=("--model=${folder##*/}=${folder}"); done
  rm -f "${work}/port"
  "${bin}/gdn_server" --backend=gpu --listen=127.0.0.1:0 "--port-file=${work}/port" "${flags[@]}" >"${work}/server.log" 2>&1 &
  server_pid=$!
  until [[ -s "${work}/port" ]]; do
    if ! kill -0 "${server_pid}" 2>/dev/null || (( waited >= ready_seconds * 10 )); then
      cat "${work}/server.log"
      return 1
    fi
    sleep 0.1
    waited=$(( waited + 1 ))
  done
}

replay_all() {
  local folder rc=0 drained=0
  start_server || { stop_processes; echo "the server did not come up"; return 1; }
  local target
  target="127.0.0.1:$(<"${work}/port")"
  "${bin}/gdnctl" info "--target=${target}" || rc=1
  for folder in tests/golden/qwen3_*; do
    echo "${folder##*/}:"
    "${bin}/gdnctl" replay "--target=${target}" "--model=${folder##*/}" "--io=${folder}/io.safetensors" "--tolerance=${tolerance}" || rc=1
  done
  kill -TERM "${server_pid}" 2>/dev/null
  wait "${server_pid}" || drained=$?
  server_pid=""
  (( drained == 0 )) || { echo "the server ended with ${drained}"; rc=1; }
  cat "${work}/server.log"
  return "${rc}"
}

say "verify_mi50: report of $(date -u +%FT%TZ)"
show machine machine
show "kernel log" kernel_log

if [[ -z "${bin}" ]]; then
  bin="${repo_root}/build/${preset}/bin"
  # The doctor first: it is quick to build, and tells whether the rest is worth the wait.
  step "setup and build of gdnctl" setup_and_build gdnctl || finish 3 "NOT RUN: gdnctl cannot be built"
fi
[[ -x "${bin}/gdnctl" ]] || finish 3 "NOT RUN: there is no gdnctl in ${bin}"
if ! step doctor "${bin}/gdnctl" doctor; then
  cp "${work}/step" "${work}/doctor"
  if ! "${force}"; then
    finish 3 "NOT RUN: $(grep '^doctor: ' "${work}/doctor" || echo "doctor gave no verdict"); mend what is missing, or give --force"
  fi
fi
show "doctor, for programs" "${bin}/gdnctl" doctor --json
if [[ "${bin}" == "${repo_root}/build/${preset}/bin" ]]; then
  step "build" setup_and_build "${programs[@]}" || finish 3 "NOT RUN: the build failed"
fi
for program in "${programs[@]}"; do
  [[ -x "${bin}/${program}" ]] || finish 3 "NOT RUN: there is no ${program} in ${bin}"
done

show "clocks before" clocks
step dot2 "${bin}/gdn_parity" --backend=gpu --dot2
summary+=("$(grep -o -m 1 '^dot2: .*' "${work}/step")")
step parity with_clocks "${bin}/gdn_parity" --backend=gpu
summary+=("parity $(grep -E '^[0-9]+ passed, [0-9]+ failed' "${work}/step" | tail -n 1)")
step "parity of int8 products" with_clocks "${bin}/gdn_parity" --backend=gpu --math=int8
summary+=("int8 $(grep -E '^[0-9]+ passed, [0-9]+ failed' "${work}/step" | tail -n 1)")
step "parity of fp16 products" with_clocks "${bin}/gdn_parity" --backend=gpu --math=half
summary+=("half $(grep -E '^[0-9]+ passed, [0-9]+ failed' "${work}/step" | tail -n 1)")
step replay replay_all
summary+=("replay $(grep -c '^replay ok: ' "${work}/step") ok, $(grep -c '^replay FAILED' "${work}/step") failed")
if "${quick}"; then
  say ""
  say "== bench: left out (--quick)"
else
  step bench with_clocks "${bin}/gdn_bench" kernel --backend=gpu "--json=${work}/bench.json"
  show "bench, for programs" cat "${work}/bench.json"
  for math in half int8; do
    step "bench of layers, ${math}" with_clocks "${bin}/gdn_bench" kernel --backend=gpu "--math=${math}" "--json=${work}/bench.json"
    show "bench of layers, ${math}, for programs" cat "${work}/bench.json"
  done
fi
show "clocks after" clocks
show "kernel log after" kernel_log

joined() {  # joined WORDS...: with commas
  local text
  text="$(printf '%s, ' "$@")"
  echo "${text%, }"
}
details="$(joined "${summary[@]}")"
if (( ${#failed[@]} > 0 )); then
  finish 1 "FAILED: $(joined "${failed[@]}") (${details})"
fi
finish 0 "VERIFIED: ${details}"
