#!/usr/bin/env bash
# Sets up, builds everything and runs every test. Exits 0 only if all of it passed.
#
#   scripts/test.sh [--preset cpu|asan|tsan|hip-gfx906] [--keep-going] [--full] [-- CTEST_ARGS...]
#
# Without --preset: cpu, which also runs every GPU kernel on the host executor, then hip-gfx906, whose programs are built and
# whose resource table is checked; then, where clang and its libFuzzer are installed, 60 s of fuzzing (scripts/fuzz.sh).
# --full also runs tests that repeat others by another seed (label full) and what some are skipped without (scripts/setup.sh
# --checks), lints deploy/, builds both container images and runs them (scripts/full_checks.sh; as root), tests the Python client
# in Hugging Face models (with PyTorch), and the plugin for vLLM in vLLM's engines.
# --keep-going compiles on after an error, to show all of them. Environment: JOBS compile jobs (default: by processors and
# memory), TEST_JOBS tests at a time (default: half the processors, 3 to 6), CCACHE_DIR where compiled objects are kept,
# TMPDIR where tests make their files (default: in memory if there is plenty).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

presets=(cpu hip-gfx906)
fuzz=true
keep_going=()
full=false
while (( $# > 0 )); do
  case "$1" in
    --preset) [[ $# -ge 2 ]] || die "--preset needs a name"; presets=("$2"); fuzz=false; shift ;;
    --preset=*) presets=("${1#*=}"); fuzz=false ;;
    --keep-going) keep_going=(-- -k 0) ;;
    --full) full=true ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  shift
done
for preset in "${presets[@]}"; do
  case "${preset}" in
    cpu | asan | tsan | hip-gfx906) ;;
    *) die "unknown preset '${preset}'; expected cpu, asan, tsan or hip-gfx906" ;;
  esac
done

cd "${repo_root}"
SECONDS=0
if [[ " ${presets[*]} " == *" hip-"* ]]; then scripts/setup.sh --hip; else scripts/setup.sh; fi
if "${full}"; then scripts/setup.sh --checks; fi

# run_preset NAME CTEST_ARGS...
run_preset() {
  local preset="$1" begin="${SECONDS}" rc=0 build_seconds targets=() runner=() selection=()
  shift
  note "configuring preset ${preset}"
  # The caller asks for the exit status, which turns `set -e` off in here: what is not built is not to be tested.
  if ! cmake --preset "${preset}"; then
    echo "test.sh: preset ${preset}: FAILED to configure"
    return 1
  fi
  # A GPU build's test programs need its GPU; what it shows without one is labelled gpu_build.
  if [[ "${preset}" == hip-* ]]; then
    targets=(--target gdn_server gdn_parity gdnctl gdn_bench gdn_shared)
    selection=(-L gpu_build)
  fi
  note "building ${preset} with $(default_jobs) jobs"
  if ! cmake --build --preset "${preset}" --parallel "$(default_jobs)" "${targets[@]}" "${keep_going[@]}"; then
    echo "test.sh: preset ${preset}: FAILED to build after $(( SECONDS - begin )) s; $(df -h . | awk 'NR == 2 {print $4}') of disk left"
    return 1
  fi
  build_seconds=$(( SECONDS - begin ))

  # ThreadSanitizer's shadow memory collides with the high mapping randomisation of newer kernels.
  if [[ "${preset}" == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
    runner=(setarch "$(uname -m)" -R)
  fi
  "${full}" || selection+=(-LE '^full$')
  local folder
  folder="$(mktemp -d "$(default_test_folder)/t.XXXX")"  # short: names of sockets have at most 107 bytes
  chmod 1777 "${folder}"  # some tests are another user for a while
  note "testing ${preset}, with temporary files in ${folder}"
  TMPDIR="${folder}" "${runner[@]}" ctest --preset "${preset}" --output-on-failure --no-tests=error --parallel "$(default_test_jobs)" \
    "${selection[@]}" "$@" || rc=$?
  rm -rf "${folder}"
  echo "test.sh: preset ${preset}: $( ((rc == 0)) && echo passed || echo FAILED);" \
    "setup and build ${build_seconds} s, total $(( SECONDS - begin )) s"
  return "${rc}"
}

# show_failures PRESET: each failed test again, with the end of what it printed: who reads a long log reads its end.
show_failures() {
  local place="build/$1/Testing/Temporary"
  [[ -f "${place}/LastTestsFailed.log" && -f "${place}/LastTest.log" ]] || return 0
  awk -v preset="$1" -v kept=60 '
    function flush_block(at) {
      if (name in failed) {
        print "== failed in " preset ": " name
        for (at = count > kept ? count - kept : 0; at < count; ++at) print lines[at]
      }
      count = 0
    }
    NR == FNR { failed[substr($0, index($0, ":") + 1)] = 1; next }
    /^[0-9]+\/[0-9]+ Testing: / { flush_block(); name = substr($0, index($0, "Testing: ") + 9) }
    { lines[count++] = $0 }
    END { flush_block() }' "${place}/LastTestsFailed.log" "${place}/LastTest.log"
}

rc=0
for preset in "${presets[@]}"; do
  run_preset "${preset}" "$@" || rc=$?
done
(( ${#presets[@]} == 1 )) ||
  echo "test.sh: presets ${presets[*]}: $( ((rc == 0)) && echo passed || echo FAILED); total ${SECONDS} s"
if (( rc != 0 )); then
  for preset in "${presets[@]}"; do show_failures "${preset}"; done
fi
if "${fuzz}" && (( rc == 0 )); then
  if scripts/fuzz.sh --available; then
    # One seed: a first run of the tests tries what was tried before. scripts/fuzz.sh by itself looks for what is new. Without
    # ring_submissions, for which clang would compile the whole server; its corpus has run as a test.
    targets=()
    for source in tests/fuzz/*_fuzz.cc; do
      [[ "${source}" == */ring_submissions_fuzz.cc ]] || targets+=("$(basename "${source}" _fuzz.cc)")
    done
    SEED=1 scripts/fuzz.sh 60 "${targets[@]}" || rc=$?
  else
    note "no fuzzing: clang and its libFuzzer are not installed; the corpora were run as tests"
  fi
fi
if "${full}" && (( rc == 0 )); then
  scripts/python_client.sh --torch || rc=$?
  scripts/vllm_tests.sh || rc=$?
  scripts/full_checks.sh || rc=$?
  echo "test.sh: full: $( ((rc == 0)) && echo passed || echo FAILED); total ${SECONDS} s"
fi
exit "${rc}"
