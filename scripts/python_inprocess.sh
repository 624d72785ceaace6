#!/usr/bin/env bash
# Tests capi/python, libgdn's Python package, in a virtual environment of its own: with numpy, mypy and ruff; or with torch.
#
#   scripts/python_inprocess.sh [BUILD_DIR] [--torch | --python PROGRAM]
#
#   BUILD_DIR         whose lib/libgdn.so is tested, with the rows of its bin/gdn_parity and beside its bin/gdn_server, where they
#                     are built (default: build/cpu)
#   --torch           also the torch operators, with PyPI's torch: gigabytes
#   --python PROGRAM  a Python that has numpy, torch and pytest already, used as it is
#
# The environment is BUILD_DIR/venv-inprocess (venv-inprocess-torch). Exits 77 where python3-venv is not installed or pip finds
# no packages.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build_dir="${repo_root}/build/cpu" extras=test venv_name=venv-inprocess python=
while (( $# > 0 )); do
  case "$1" in
    --torch) extras=test,torch venv_name=venv-inprocess-torch ;;
    --python) [[ $# -ge 2 ]] || die "--python needs a program"; python="$2"; shift ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) die "unknown argument '$1'; see --help" ;;
    *) build_dir="$1" ;;
  esac
  shift
done
build_dir="$(cd "${build_dir}" && pwd)" || die "there is no such build; cmake --build --preset cpu --target gdn_shared makes it"
package="${repo_root}/capi/python"
export GDN_LIBRARY="${build_dir}/lib/libgdn.so"
if [[ -x "${build_dir}/bin/gdn_parity" ]]; then export GDN_PARITY="${build_dir}/bin/gdn_parity"; fi
if [[ -x "${build_dir}/bin/gdn_server" && -x "${build_dir}/bin/gdnctl" ]]; then export GDN_PROGRAMS="${build_dir}/bin"; fi
[[ -e "${GDN_LIBRARY}" ]] || die "there is no ${GDN_LIBRARY}; build the target gdn_shared"

run_tests() {  # run_tests PYTHON
  (cd "${package}" && "$1" -B -m pytest -q -p no:cacheprovider tests)
}

if [[ -n "${python}" ]]; then
  run_tests "${python}"
  exit 0
fi

venv="${build_dir}/${venv_name}"
if [[ ! -x "${venv}/bin/pip" ]]; then
  python3 -m venv "${venv}" >/dev/null || { echo "python3-venv is not installed"; exit 77; }
fi
# A copy, for what building leaves behind.
copy="$(mktemp -d)"
trap 'rm -rf "${copy}"' EXIT
cp -r "${package}" "${copy}/package"
"${venv}/bin/pip" install --quiet "${copy}/package[${extras}]" || { echo "pip installs nothing here"; exit 77; }

export RUFF_CACHE_DIR="${copy}/ruff" MYPY_CACHE_DIR="${copy}/mypy"
run_tests "${venv}/bin/python"
cd "${package}"
"${venv}/bin/ruff" check .
"${venv}/bin/ruff" format --check .
cd "${copy}"  # the package that is installed is checked
"${venv}/bin/mypy" --config-file "${package}/pyproject.toml" --python-executable "${venv}/bin/python" -p gdn_inprocess
