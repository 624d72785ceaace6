#!/usr/bin/env bash
# The long forms of the tests that break things: crashes, races, torn files, a shared store that dies, many sessions, a
# hostile neighbour, and a long time. Each prints its figures; exits 0 only if nothing was lost and nobody was in another's
# way. docs/evidence/reliability.md has those of the last run.
#
#   scripts/soak.sh [crash|python|failures|race|many|disk|redis|setback|neighbour|steady ...]      (default: all)
#
# Environment: CRASH_ROUNDS (200 kills), HISTORY_ROUNDS (30, each with every kind of call first by every form of client),
# PYTHON_RUNS (40 histories of 100 calls), RACE_ROUNDS (100000, under ThreadSanitizer), MANY_SESSIONS and MANY_ROOM (10000
# sessions, room for 100), STORE_ROUNDS (repeats of the disk and Redis fault tests, 20), PARTITION_SECONDS (60),
# NEIGHBOUR_SECONDS (60), STEADY_SECONDS (600), JOBS.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0; fi
parts=("$@")
(( ${#parts[@]} > 0 )) || parts=(crash python failures race many disk redis setback neighbour steady)
for part in "${parts[@]}"; do
  case "${part}" in crash | python | failures | race | many | disk | redis | setback | neighbour | steady) ;; *) die "unknown part '${part}'; see --help" ;; esac
done

cd "${repo_root}"
scripts/setup.sh
wants() { [[ " ${parts[*]} " == *" $1 "* ]]; }

# build PRESET TARGETS...
build() {
  local preset="$1"
  shift
  note "building ${preset}: $*"
  cmake --preset "${preset}" >/dev/null
  cmake --build --preset "${preset}" --parallel "$(default_jobs)" --target "$@"
}

failed=()
# run NAME COMMAND...
run() {
  local name="$1" begin="${SECONDS}"
  shift
  note "${name}: $*"
  if "$@"; then
    echo "soak: ${name}: passed in $(( SECONDS - begin )) s"
  else
    echo "soak: ${name}: FAILED after $(( SECONDS - begin )) s"
    failed+=("${name}")
  fi
}

targets=()
if wants crash; then targets+=(gdn_server crash_soak history_soak); fi
if wants python; then targets+=(gdn_server); fi
if wants failures; then targets+=(acquisition_failure_test); fi
if wants many; then targets+=(state_service_test); fi
if wants disk; then targets+=(disk_tier_test); fi
if wants redis; then targets+=(redis_tier_test state_service_test); fi
if wants setback; then targets+=(set_back_test); fi
if wants neighbour; then targets+=(gdn_server neighbour_soak); fi
if wants steady; then targets+=(gdn_server steady_soak); fi
if (( ${#targets[@]} > 0 )); then build cpu "${targets[@]}"; fi
bin="${repo_root}/build/cpu/bin"

if wants crash; then
  run crash "${bin}/crash_soak" --server="${bin}/gdn_server" --model=tests/golden/qwen3_next_1 \
    --rounds="${CRASH_ROUNDS:-200}"
  run crash_over_rings "${bin}/crash_soak" --server="${bin}/gdn_server" --model=tests/golden/qwen3_next_1 \
    --rounds="${CRASH_ROUNDS:-200}" --transport=ring
  run history "${bin}/history_soak" --server="${bin}/gdn_server" --rounds="${HISTORY_ROUNDS:-30}"
fi
if wants python; then
  venv="${repo_root}/build/cpu/venv-soak"
  [[ -x "${venv}/bin/pip" ]] || python3 -m venv "${venv}"
  copy="$(mktemp -d)"  # for what building leaves behind
  mkdir "${copy}/client"
  cp -r client/python "${copy}/client/"
  cp -r proto ring "${copy}/"
  "${venv}/bin/pip" install --quiet "${copy}/client/python"
  rm -rf "${copy}"
  run python env GDN_SERVER="${bin}/gdn_server" "${venv}/bin/python" -B client/python/tests/soak.py \
    --runs "${PYTHON_RUNS:-40}" --calls 100
fi
if wants failures; then
  run failures env GDN_FAILURE_STRIDE=1 "${bin}/acquisition_failure_test"
fi
if wants race; then
  build tsan session_race_test
  # ThreadSanitizer's shadow memory collides with the high mapping randomisation of newer kernels.
  runner=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then runner=(setarch "$(uname -m)" -R); fi
  run race "${runner[@]}" env GDN_RACE_ROUNDS="${RACE_ROUNDS:-100000}" \
    TSAN_OPTIONS="suppressions=${repo_root}/tests/tsan.supp:second_deadlock_stack=1:ignore_noninstrumented_modules=1" build/tsan/bin/session_race_test
fi
if wants many; then
  run many env GDN_MANY_SESSIONS="${MANY_SESSIONS:-10000}" GDN_MANY_ROOM="${MANY_ROOM:-100}" \
    "${bin}/state_service_test" --gtest_filter='*Many*Sessions*'
fi
if wants disk; then
  run disk "${bin}/disk_tier_test" --gtest_repeat="${STORE_ROUNDS:-20}" --gtest_break_on_failure
fi
if wants redis; then
  run redis "${bin}/redis_tier_test" --gtest_repeat="${STORE_ROUNDS:-20}" --gtest_break_on_failure
  run stale-store env GDN_PARTITION_SECONDS="${PARTITION_SECONDS:-60}" "${bin}/state_service_test" \
    --gtest_filter='StaleStore.*'
fi
if wants setback; then
  run setback env GDN_SET_BACK_ALL=1 "${bin}/set_back_test"
fi
if wants neighbour; then
  run neighbour "${bin}/neighbour_soak" --server="${bin}/gdn_server" --seconds="${NEIGHBOUR_SECONDS:-60}"
fi
if wants steady; then
  run steady "${bin}/steady_soak" --server="${bin}/gdn_server" --seconds="${STEADY_SECONDS:-600}"
fi

if (( ${#failed[@]} > 0 )); then die "failed: ${failed[*]}"; fi
echo "soak: all passed: ${parts[*]}; ${SECONDS} s"
