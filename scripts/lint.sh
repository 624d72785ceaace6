#!/usr/bin/env bash
# Checks format and style; changes nothing unless asked.
#
#   scripts/lint.sh [--fix] [--all] [--base REF] [--no-tidy]
#
#   --fix       rewrite C++ files with clang-format instead of complaining
#   --all       clang-tidy on every source, not only on those changed since the base
#   --base REF  what "changed" is measured against (default: origin/main, else the commit before this one)
#   --no-tidy   leave clang-tidy out
#
# Runs clang-format, clang-tidy, buf (lint; and breaking changes against the last tag), shellcheck and the source rules of
# tests/arrows. Tools come from scripts/setup.sh --lint; buf is put in build/venv-lint.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

buf_version=1.69.0
tidy_build="${repo_root}/build/cpu"

usage() { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

fix=false all=false tidy=true base=
while (( $# > 0 )); do
  case "$1" in
    --fix) fix=true ;;
    --all) all=true ;;
    --base) [[ $# -ge 2 ]] || die "--base needs a commit"; base="$2"; shift ;;
    --base=*) base="${1#*=}" ;;
    --no-tidy) tidy=false ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  shift
done

cd "${repo_root}"
git rev-parse --git-dir >/dev/null 2>&1 || die "needs a git checkout"
[[ -z "${base}" ]] || git rev-parse --verify -q "${base}^{commit}" >/dev/null || die "--base: no commit '${base}'"
scripts/setup.sh --lint

failed=()
run() {  # run NAME COMMAND...: the command, its name remembered if it fails
  local name="$1"
  shift
  note "${name}"
  "$@" || failed+=("${name}")
}

own_files() {  # own_files PATTERN...: files of the checkout, tracked or new
  git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
    [[ -f "${file}" ]] && echo "${file}"
  done
}

default_base() {
  local ref
  for ref in origin/main HEAD~1; do
    if [[ "$(git rev-parse --verify -q "${ref}^{commit}")" != "$(git rev-parse --verify -q HEAD)" ]] &&
      git rev-parse --verify -q "${ref}^{commit}"; then
      return
    fi
  done
}

changed_sources() {
  if "${all}"; then
    own_files '*.cc'
    return
  fi
  local since="${base}"
  [[ -n "${since}" ]] || since="$(default_base)"
  if [[ -z "${since}" ]]; then
    own_files '*.cc' '*.h'
  else
    {
      git diff --name-only --diff-filter=d "$(git merge-base "${since}" HEAD)" -- '*.cc' '*.h'
      git ls-files --others --exclude-standard -- '*.cc' '*.h'
    } | sort -u
  fi
}

clang_tidy() {
  mapfile -t sources < <(changed_sources)
  if (( ${#sources[@]} == 0 )); then
    echo "no changed sources"
    return
  fi
  cmake --preset cpu >/dev/null || return 1
  cmake --build "${tidy_build}" --parallel "$(default_jobs)" --target gdn_proto >/dev/null || return 1  # generated headers
  echo "${#sources[@]} files"
  printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(default_jobs)" clang-tidy -p "${tidy_build}" --quiet
}

install_buf() {
  local venv="build/venv-lint"
  buf="${repo_root}/${venv}/bin/buf"
  [[ "$("${buf}" --version 2>/dev/null)" == "${buf_version}" ]] && return
  python3 -m venv "${venv}" && "${venv}/bin/pip" install --quiet "buf-bin==${buf_version}"
}

buf_breaking() {
  local tag
  tag="$(git describe --tags --abbrev=0 2>/dev/null)" || { echo "no tag yet to compare with"; return 0; }
  "${buf}" breaking proto --against ".git#tag=${tag},subdir=proto"
}

mapfile -t cpp_files < <(own_files '*.cc' '*.h' '*.hip')
if "${fix}"; then
  run "clang-format -i" clang-format -i "${cpp_files[@]}"
else
  run "clang-format" clang-format --dry-run -Werror "${cpp_files[@]}"
fi

mapfile -t shell_files < <(own_files 'scripts/*.sh' .ci/run)
run "shellcheck" shellcheck -x "${shell_files[@]}"

run "source rules" python3 tests/arrows/check_arrows.py

if install_buf; then
  run "buf lint" "${buf}" lint proto
  run "buf breaking" buf_breaking
else
  failed+=("installing buf")
fi

if "${tidy}"; then
  run "clang-tidy" clang_tidy
fi

if (( ${#failed[@]} > 0 )); then
  printf 'lint: FAILED:'
  printf ' [%s]' "${failed[@]}"
  echo
  exit 1
fi
echo "lint: passed"
