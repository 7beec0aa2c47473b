#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh checkout to a plan: installs what is missing, builds without CUDA, runs the fast
# tests, and plans. Everything lies in build/quickstart.
set -eu
cd "$(dirname "$0")/.."
. tests/packages.sh

need g++:g++ meson:meson ninja-build:ninja cmake:cmake pkg-config:pkg-config python3:python3 \
  libeigen3-dev librange-v3-dev libfmt-dev doctest-dev libcli11-dev nlohmann-json3-dev

build=build/quickstart
log=$build/quickstart.log
mkdir -p "$build"

# quietly WHAT COMMAND...: the command's output goes to the log, and to the terminal if it fails.
quietly() {
  local what=$1
  shift
  echo "$what ..."
  if ! "$@" > "$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "failed: $what (the whole output: $log)" >&2
    exit 1
  fi
}

reconfigure=
[ -f "$build/build.ninja" ] && reconfigure=--reconfigure
quietly "configuring" meson setup $reconfigure "$build" --wrap-mode=nofallback \
  -Dbuildtype=release -Dcuda=disabled -Dnccl=disabled -Dmpi=disabled -Dbench=disabled
quietly "building" ninja -C "$build"
quietly "testing" meson test -C "$build" --no-rebuild --suite unit --print-errorlogs
sed -n 's/^Ok: */passed: /p; s/^Fail: */failed: /p; s/^Skipped: */skipped: /p' "$log"

echo
echo "== the smallest program: examples/minimal/main.cpp"
"$build/examples/minimal"

echo
echo "== attention of a planned batch on 8 threads: examples/ring_attention/main.cpp"
"$build/examples/ring_attention/ring_attention" examples/data/github.len
