#!/usr/bin/env bash
# Checks that scripts/release.sh --check-versions takes this tree, and reports each file that states another version.
#
#   check_release_versions.sh SOURCE_DIR
set -euo pipefail
source_dir="$(cd "${1:?usage: check_release_versions.sh SOURCE_DIR}" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
files=(CMakeLists.txt CHANGELOG.md client/python/src/gdn_client/version.py capi/python/pyproject.toml deploy/Dockerfile scripts/common.sh
  scripts/release.sh)

"${source_dir}/scripts/release.sh" --check-versions
version="$(sed -n 's/^project(.* VERSION \([^ )]*\).*/\1/p' "${source_dir}/CMakeLists.txt")"

failed=0
plant() {  # plant FILE SED_SCRIPT REPORT: a copy of the tree with the change is refused, with REPORT
  local tree="${work}/tree" rc=0
  rm -rf "${tree}"
  mkdir "${tree}"
  (cd "${source_dir}" && cp --parents -t "${tree}" "${files[@]}")
  sed -i "$2" "${tree}/$1"
  "${tree}/scripts/release.sh" --check-versions >"${work}/output" 2>&1 || rc=$?
  if (( rc == 0 )) || ! grep -qF -- "$3" "${work}/output"; then
    echo "$1, $2: not reported: $3"
    cat "${work}/output"
    failed=1
  fi
}

plant CMakeLists.txt 's/^project(gdn_service VERSION [^ ]*/project(gdn_service VERSION 9.9.9/' "CMakeLists.txt 9.9.9"
plant CMakeLists.txt 's/ VERSION [0-9.]* / /' "states no version"
plant client/python/src/gdn_client/version.py 's/^__version__.*/__version__ = "9.9.9"/' "version.py states '9.9.9'"
plant capi/python/pyproject.toml 's/^version = .*/version = "9.9.9"/' "pyproject.toml states '9.9.9'"
plant deploy/Dockerfile '0,/^ARG VERSION=/s/^ARG VERSION=.*/ARG VERSION=9.9.9/' "Dockerfile states '9.9.9'"
plant CHANGELOG.md "s/^## \\[${version}\\].*/## [9.9.9] - 2026-01-01/" "CHANGELOG.md states '9.9.9'"
plant CHANGELOG.md "s/^## \\[${version}\\].*/## [${version}]/" "CHANGELOG.md states ''"
plant CHANGELOG.md '/^## \[Unreleased\]/d' "no section [Unreleased]"
(( failed )) || echo "check_release_versions.sh: every planted fault is reported"
exit "${failed}"
