#!/usr/bin/env bash
# Installs libgdn's components from BUILD_DIR, moves the tree, and builds and runs the C test against it by pkg-config alone.
#
#   check_installed.sh BUILD_DIR
set -euo pipefail

build_dir="$(cd "${1:?usage: check_installed.sh BUILD_DIR}" && pwd)"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
cd "${work}"

for component in inprocess inprocess-dev; do
  cmake --install "${build_dir}" --prefix "${work}/made" --component "${component}" >install.log || { cat install.log; exit 1; }
done
mv made moved  # nothing in it may name where it was installed
mkdir capi     # the test's name for the header
echo '#include <gdn/gdn.h>' >capi/gdn.h

PKG_CONFIG_PATH="$(dirname "$(find moved -name gdn.pc)")"
export PKG_CONFIG_PATH
read -ra compile <<<"$(pkg-config --cflags gdn)"
read -ra link <<<"$(pkg-config --libs gdn)"
"${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Werror -I. "${compile[@]}" "${here}/c_interface_test.c" -o program "${link[@]}" -lm
LD_LIBRARY_PATH="$(pkg-config --variable=libdir gdn)" ./program
