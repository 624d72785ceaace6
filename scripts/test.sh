#!/usr/bin/env bash
# Sets up, builds everything and runs every test. Exits 0 only if all of it passed.
#
#   scripts/test.sh [--preset cpu|asan|tsan] [--keep-going] [-- CTEST_ARGS...]
#
# --keep-going compiles on after an error, to show all of them. Environment: JOBS compile jobs (default: by processors and
# memory), TEST_JOBS tests at a time (default 2), CCACHE_DIR where compiled objects are kept.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

preset=cpu
keep_going=()
while (( $# > 0 )); do
  case "$1" in
    --preset) [[ $# -ge 2 ]] || die "--preset needs a name"; preset="$2"; shift ;;
    --preset=*) preset="${1#*=}" ;;
    --keep-going) keep_going=(-- -k 0) ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  shift
done
case "${preset}" in cpu | asan | tsan) ;; *) die "unknown preset '${preset}'; expected cpu, asan or tsan" ;; esac

cd "${repo_root}"
SECONDS=0
scripts/setup.sh

note "configuring preset ${preset}"
cmake --preset "${preset}"

note "building with $(default_jobs) jobs"
cmake --build --preset "${preset}" --parallel "$(default_jobs)" "${keep_going[@]}"
build_seconds=${SECONDS}

# ThreadSanitizer's shadow memory collides with the high mapping randomisation of newer kernels.
runner=()
if [[ "${preset}" == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
  runner=(setarch "$(uname -m)" -R)
fi

note "testing"
rc=0
"${runner[@]}" ctest --preset "${preset}" --output-on-failure --no-tests=error --parallel "${TEST_JOBS:-2}" "$@" || rc=$?
echo "test.sh: preset ${preset}: $( ((rc == 0)) && echo passed || echo FAILED);" \
  "setup and build ${build_seconds} s, total ${SECONDS} s"
exit "${rc}"
