#!/usr/bin/env bash
# Checks which commit base/version/commit.cmake writes: that of a clone, marked if files have changed; else the one that CMake is given.
#
#   check_commit.sh SOURCE_DIR    exits 77 if git is not installed
set -euo pipefail
script="$1/base/version/commit.cmake"
command -v git >/dev/null || { echo "git is not installed"; exit 77; }
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CEILING_DIRECTORIES="${work}"

failed=0
expect() {  # expect COMMIT FOLDER CMAKE_ARGUMENT...: the header that is written for FOLDER names COMMIT
  local wanted="$1" folder="$2" found
  shift 2
  cmake "-DSOURCE=${folder}" "-DFILE=${work}/commit.cc" "$@" -P "${script}"
  found="$(sed -n 's/.*kCommit\[\] = "\(.*\)";/\1/p' "${work}/commit.cc")"
  [[ "${found}" == "${wanted}" ]] || { echo "${folder##*/} $*: the commit is '${found}', expected '${wanted}'"; failed=1; }
}

mkdir "${work}/image"
expect unknown "${work}/image"
expect unknown "${work}/image" -DCOMMIT=
expect unknown "${work}/image" '-DCOMMIT=a"b'
expect 0123456789ab "${work}/image" -DCOMMIT=0123456789abcdef0123456789abcdef01234567
expect 0123456789ab-changed "${work}/image" -DCOMMIT=0123456789abcdef0123456789abcdef01234567-changed
expect 012345678901 "${work}/image" -DCOMMIT=012345678901
expect v0.1.0-rc1 "${work}/image" -DCOMMIT=v0.1.0-rc1

git init -q "${work}/clone"
echo one >"${work}/clone/file"
git -C "${work}/clone" add file
git -C "${work}/clone" -c user.name=name -c user.email=mail commit -q -m one
commit="$(git -C "${work}/clone" rev-parse --short=12 HEAD)"
expect "${commit}" "${work}/clone" -DCOMMIT=0123456789abcdef
echo two >"${work}/clone/file"
expect "${commit}-changed" "${work}/clone" -DCOMMIT=0123456789abcdef
(( failed )) || echo "check_commit.sh: ok"
exit "${failed}"
