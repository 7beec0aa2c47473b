#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds with warnings as errors and runs the tests; the last line is the count.
#
#   tests/run.sh          g++; every suite but slow, faults and mutations
#   tests/run.sh --all    those too; clang++; address and undefined, and thread sanitizer
#
# Build directories lie under build/. Exit status 0 if and only if nothing failed. Where nvcc is
# found the CUDA library is part of each build but the last (20 s of nvcc; ccache keeps it), and
# where CUDA's headers are its kernels run in the emulator; without them Meson shows `emulation` as
# skipped.
set -u
cd "$(dirname "$0")/.." || exit 2
. tests/packages.sh

all=false
case "${1-}" in
  '') ;;
  --all) all=true ;;
  *) echo "usage: tests/run.sh [--all]" >&2; exit 2 ;;
esac

passed=0
failed=0
skipped=0
finish() {
  echo "meson: $passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
  exit
}
# What fails before a test can run counts as one failure.
broken() {
  echo "FAILED: $1" >&2
  failed=$((failed + 1))
}

packages=(g++:g++ meson:meson ninja-build:ninja cmake:cmake pkg-config:pkg-config python3:python3
  libeigen3-dev librange-v3-dev libfmt-dev doctest-dev libbenchmark-dev libcli11-dev
  nlohmann-json3-dev libopenmpi-dev openmpi-bin:mpirun)
if $all; then packages+=(clang:clang++ libfuzzer-14-dev libclang-rt-14-dev valgrind:valgrind); fi
need "${packages[@]}" || { broken "missing packages"; finish; }

jobs=$(nproc 2> /dev/null || echo 2)
# Without halt_on_error a test that overflows would be reported as passed.
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_stack_use_after_return=1}
export TSAN_OPTIONS=${TSAN_OPTIONS-halt_on_error=1:second_deadlock_stack=1}

cache=
command -v ccache > /dev/null 2>&1 && cache='ccache '

# configure NAME COMPILER OPTION...
configure() {
  local directory=build/$1 compiler=$cache$2
  shift 2
  local options=(--wrap-mode=nofallback --fatal-meson-warnings -Dwerror=true "$@")
  if [ -f "$directory/build.ninja" ]; then
    CXX=$compiler meson setup --reconfigure "$directory" "${options[@]}" && return 0
    rm -rf "$directory"
  fi
  CXX=$compiler meson setup "$directory" "${options[@]}"
}

# suites NAME LOG ARGUMENT...: runs the tests that the arguments select and adds up their results.
suites() {
  local directory=build/$1 log=$2
  shift 2
  rm -f "$directory/meson-logs/$log.json"
  meson test -C "$directory" --logbase "$log" --print-errorlogs --num-processes "$jobs" "$@"
  local status=$? counts p f s
  counts=$(python3 - "$directory/meson-logs/$log.json" << 'PYTHON'
import json
import os
import sys

counts = [0, 0, 0]
if os.path.exists(sys.argv[1]):
    with open(sys.argv[1], encoding="utf-8") as log:
        for line in log:
            result = json.loads(line)["result"]
            counts[0 if result in ("OK", "EXPECTEDFAIL") else 2 if result == "SKIP" else 1] += 1
print(*counts)
PYTHON
  ) || counts="0 0 0"
  read -r p f s <<< "$counts"
  passed=$((passed + p))
  failed=$((failed + f))
  skipped=$((skipped + s))
  if [ $status -ne 0 ] && [ "$f" -eq 0 ]; then broken "meson test in $directory ($log)"; fi
}

# check NAME COMPILER "MESON TEST ARGUMENTS" OPTION...: a whole build, then its tests.
check() {
  local name=$1 compiler=$2 select=$3
  shift 3
  echo "== $name"
  configure "$name" "$compiler" "$@" || { broken "meson setup build/$name"; return; }
  # Before 1.4 Meson does not see that a header of a .cu file has changed.
  local library=build/$name/backends/cuda/libdyncp_cuda.so
  if [ -e "$library" ] &&
      [ -n "$(find -H backends/cuda include -newer "$library" -print -quit)" ]; then
    find "build/$name/backends/cuda" "build/$name/tests/gpu" -name '*.cu.o' -delete
  fi
  # Meson runs no test while a program is missing; -k 0 shows all errors at once.
  ninja -C "build/$name" -j "$jobs" -k 0 || { broken "the build in build/$name"; return; }
  # shellcheck disable=SC2086
  suites "$name" testlog --no-rebuild $select
}

by_default='--no-suite slow --no-suite faults --no-suite mutations'
# These compile code of their own and gain nothing from a sanitizer.
programs="$by_default --no-suite headers --no-suite compile-fail --no-suite packaging"
programs="$programs --no-suite kernels"

check test g++ "$by_default -t 3" -Doptimization=2 -Ddebug=false -Db_ndebug=false

if $all; then
  if [ -f build/test/build.ninja ]; then
    for suite in slow faults mutations; do
      echo "== $suite"
      suites test "$suite" --no-rebuild --suite "$suite" -t 3
    done
  fi
  check test-clang clang++ "$by_default -t 3" -Doptimization=1 -Ddebug=false -Db_ndebug=false
  check test-sanitize g++ "$programs -t 10" -Doptimization=1 -Ddebug=true \
    -Db_sanitize=address,undefined -Db_lundef=false
  # Thread sanitizer: only what starts threads is built and run.
  echo "== test-threads"
  if configure test-threads g++ -Doptimization=1 -Ddebug=true -Db_sanitize=thread \
      -Db_lundef=false; then
    suites test-threads testlog --suite threads -t 10
  else
    broken "meson setup build/test-threads"
  fi
fi
finish
