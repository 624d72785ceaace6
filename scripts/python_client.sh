#!/usr/bin/env bash
# Installs the Python client in a virtual environment of its own, and runs its tests against a live server, mypy and ruff;
# then builds its wheel, and uses it in another environment. Tests client/vllm too, as far as that needs no vLLM.
#
#   scripts/python_client.sh [--torch] [BUILD_DIR]    whose bin/gdn_server it is tested with (default: build/cpu)
#
#   --torch  with torch and transformers (gigabytes), for what runs in Hugging Face models
#
# The environment is BUILD_DIR/venv-client, or venv-client-torch. Exits 77 where python3-venv is not installed or pip finds no packages.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

extras=test venv_name=venv-client
case "${1:-}" in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --torch) extras=test,torch venv_name=venv-client-torch; shift ;;
esac
build_dir="$(cd "${1:-${repo_root}/build/cpu}" && pwd)" || die "there is no ${1:-build/cpu}; scripts/test.sh makes it"
package="${repo_root}/client/python"
venv="${build_dir}/${venv_name}"

if [[ ! -x "${venv}/bin/pip" ]]; then
  python3 -m venv "${venv}" >/dev/null || { echo "python3-venv is not installed"; exit 77; }
fi
# A copy, for what building leaves behind.
copy="$(mktemp -d)"
trap 'rm -rf "${copy}"' EXIT
mkdir -p "${copy}/client"
cp -r "${package}" "${copy}/client/"
cp -r "${repo_root}/proto" "${repo_root}/ring" "${copy}/"
rm -rf "${copy}/client/python/build"
"${venv}/bin/pip" install --quiet "${copy}/client/python[${extras}]" || { echo "pip installs nothing here"; exit 77; }

cd "${package}"
export GDN_SERVER="${build_dir}/bin/gdn_server" RUFF_CACHE_DIR="${copy}/ruff" MYPY_CACHE_DIR="${copy}/mypy"
"${venv}/bin/python" -B -m pytest -q -p no:cacheprovider tests
"${venv}/bin/ruff" check .
"${venv}/bin/ruff" format --check .
(cd "${copy}" && "${venv}/bin/ruff" check --config "${package}/pyproject.toml" --extend-ignore D103 "${repo_root}/examples/hugging_face")
(cd "${copy}" && "${venv}/bin/ruff" format --config "${package}/pyproject.toml" --check "${repo_root}/examples/hugging_face")
cd "${copy}"  # the package that is installed is checked, with the messages that were made for it
"${venv}/bin/mypy" --config-file "${package}/pyproject.toml" --python-executable "${venv}/bin/python" -p gdn_client

# The plugin for vLLM, without vLLM. scripts/vllm_tests.sh runs it in vLLM's engines.
cp -r "${repo_root}/client/vllm" "${copy}/client/"
"${venv}/bin/pip" install --quiet --no-deps "${copy}/client/vllm"
cd "${repo_root}/client/vllm"
"${venv}/bin/python" -B -m pytest -q -p no:cacheprovider tests
"${venv}/bin/ruff" check .
"${venv}/bin/ruff" format --check .
cd "${copy}"
"${venv}/bin/mypy" --config-file "${repo_root}/client/vllm/pyproject.toml" --python-executable "${venv}/bin/python" -p gdn_vllm

# The wheel, by itself in an environment that was never near the sources.
"${venv}/bin/pip" wheel --quiet --no-deps --wheel-dir "${copy}/wheel" "${copy}/client/python"
python3 -m venv "${copy}/elsewhere"
"${copy}/elsewhere/bin/pip" install --quiet "${copy}"/wheel/gdn_client-*.whl
"${copy}/elsewhere/bin/python" -B "${package}/tests/wheel_check.py" "${copy}"/wheel/gdn_client-*.whl
