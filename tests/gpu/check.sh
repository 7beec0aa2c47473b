#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the CUDA backend and its tests for the GPU of this machine, runs them, and prints one table
# of speeds. Needs nvcc, g++ and bash, no Meson and no network; see prepare.sh.
#
#   tests/gpu/check.sh             exit status 0: all passed; 1: something failed; 77: no GPU
#   tests/gpu/check.sh --build     builds only, GPU or not
#
# What was compiled stays in build/gpu-check, so that a second run begins with the tests.
#
# Environment: CUDA_HOME, NCCL_ROOT (folders with include and lib), CXX (default g++), JOBS (default
# all cores), GPU_ARCH (default 90a), BUDGET_S (default 540: after so many seconds nothing runs).
set -u
cd "$(dirname "$0")/../.." || exit 2

build_only=false
case "${1-}" in
  '') ;;
  --build) build_only=true ;;
  *) echo "usage: tests/gpu/check.sh [--build]" >&2; exit 2 ;;
esac

if ! $build_only; then
  gpus=$(nvidia-smi -L 2> /dev/null | grep '^GPU')
  if [ -z "$gpus" ]; then
    echo "skipped: nvidia-smi shows no GPU on this machine"
    exit 77
  fi
  echo "$gpus"
  nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1 | sed 's/^/driver /'
fi

budget_s=${BUDGET_S:-540}
left_s() { echo $((budget_s > SECONDS ? budget_s - SECONDS : 0)); }

fail() {
  echo "check.sh: $1" >&2
  exit 1
}
cuda=${CUDA_HOME-}
for place in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
  [ -z "$cuda" ] && [ -x "$place" ] && cuda=$(dirname "$(dirname "$(readlink -f "$place")")")
done
[ -x "$cuda/bin/nvcc" ] || fail "no nvcc; set CUDA_HOME"
nvcc=$cuda/bin/nvcc
cxx=${CXX:-g++}
arch=${GPU_ARCH:-90a}
out=build/gpu-check
mkdir -p "$out/include"

headers=build/gpu-headers
if [ ! -f $headers/doctest/doctest.h ]; then
  echo '#include <doctest/doctest.h>' | $cxx -x c++ -E - > /dev/null 2>&1 ||
    fail "no doctest; run tests/gpu/prepare.sh where there is a network, bring build/gpu-headers"
fi

# NCCL comes with the toolkit, the system or PyTorch. Without both halves of it, or with one that is
# too old, the rest is checked all the same.
nccl=
nccl_version=0
nccl_flags=()
nccl_library=()
python_nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2> /dev/null)
for place in "${NCCL_ROOT-}" "$cuda" /usr "$python_nccl"; do
  header=$place/include/nccl.h
  [ -n "$place" ] && [ -f "$header" ] || continue
  part() { sed -n "s/^#define NCCL_$1 \([0-9]*\).*/\1/p" "$header"; }
  version=$((10000 * $(part MAJOR) + 100 * $(part MINOR) + $(part PATCH)))
  library=$(ls "$place"/lib*/libnccl.so* "$place"/lib*/*/libnccl.so* 2> /dev/null | head -n 1)
  if [ -n "$library" ] && [ $version -ge 22000 ]; then
    nccl=$place
    nccl_version=$version
    [ "$nccl" = /usr ] || nccl_flags=(-isystem "$nccl/include")
    # The wheels have no libnccl.so, only libnccl.so.2, which nvcc does not take for a library.
    ln -sf "$(readlink -f "$library")" "$out/libnccl.so"
    nccl_library=("$out/libnccl.so" -Xlinker "-rpath=$(dirname "$library")")
    break
  fi
  echo "not used: $header of version $version, ${library:-no libnccl.so beside it}"
done

# What configure_file does in backends/cuda/meson.build.
case $arch in *a) number=${arch%a}1 ;; *f) number=${arch%f}2 ;; *) number=${arch}0 ;; esac
sed -e "s/@architectures@/$number, /" -e 's/@head_dims@/64, 128, /' \
  -e "s/@nccl_version@/$nccl_version/" -e 's/@nvtx@/0/' backends/cuda/build_config.hpp.in \
  > "$out/include/build_config.hpp"
for pass in backward forward; do
  for type in bfloat16 float16; do
    for dim in 64 128; do
      sed -e "s/@type@/$type/g" -e "s/@dim@/$dim/g" backends/cuda/attention_$pass.cu.in \
        > "$out/attention_${pass}_${type}_$dim.cu"
    done
  done
done
for test in fragments wrappers; do
  sed "s/@test@/$test/" tests/gpu/test.cu.in > "$out/$test.cu"
done

flags=(-O2 -std=c++20 -DDYNCP_TEST_ON_GPU=1 "-I$out/include" -Iinclude -Itests
  -Ibackends/cuda -Ibackends/cuda/include -Ibackends/cpu/include -isystem $headers
  "${nccl_flags[@]}")
for_nvcc=("$nvcc" "${flags[@]}" -Xptxas=--warn-on-spills
  "-gencode=arch=compute_$arch,code=sm_$arch")
for_host=("$cxx" "${flags[@]}" -pthread -Wall -Wextra -isystem "$cuda/include")

# An object is kept while what it may be made of is the same. Contents count: in a copy of the tree
# every file is new.
digest() { { "$nvcc" --version; $cxx --version; find "$@" -type f -print0 | sort -z |
  xargs -0 sha256sum; } | sha256sum | cut -d ' ' -f 1; }
library_digest=$(digest include backends "$out/include")
tests_digest=$(digest include backends "$out/include" tests)

# One command a line, what takes longest first, for as many jobs as there are cores.
commands=$out/commands
: > "$commands"
library=()
programs=()
compile() {  # NAME SOURCE [OPTION...]
  local name=$1 source=$2 command key=$tests_digest
  shift 2
  case $source in
    *.cu) command="${for_nvcc[*]@Q} ${*@Q} -c $source -o $out/$name.o" ;;
    *) command="${for_host[*]@Q} ${*@Q} -c $source -o $out/$name.o" ;;
  esac
  case $name in lib_*) key=$library_digest ;; esac
  key="$key $command"
  [ -f "$out/$name.o" ] && [ "$key" = "$(cat "$out/$name.key" 2> /dev/null)" ] && return
  rm -f "$out/$name.key"
  echo "$command && echo ${key@Q} > $out/$name.key" >> "$commands"
}
program() {  # NAME SOURCE: one that links the library and main.o
  compile "$1" "$2"
  programs+=("$1")
}
program conformance tests/gpu/conformance.cpp
program attention tests/emulation/attention.cpp
program rows tests/emulation/rows.cpp
program fragments "$out/fragments.cu"
program wrappers "$out/wrappers.cu"
compile main tests/gpu/main.cpp -O0
compile table tests/gpu/table.cpp
for source in "$out"/attention_*.cu backends/cuda/*.cu backends/cuda/*.cpp; do
  name=$(basename "$source")
  case $name in
    nccl.cpp) [ $nccl_version -eq 0 ] && continue ;;
    without_nccl.cpp) [ $nccl_version -gt 0 ] && continue ;;
  esac
  compile "lib_$name" "$source"
  library+=("$out/lib_$name.o")
done
jobs=${JOBS:-$(nproc)}
echo "building for sm_$arch, $(wc -l < "$commands") files, $jobs jobs; NCCL: ${nccl:-none}"
start=$SECONDS
tr '\n' '\0' < "$commands" | timeout $(($(left_s) + 1)) xargs -0 -P "$jobs" -I '{}' bash -c '{}'
case $? in
  0) ;;
  124) fail "no time is left; run it again, what is compiled is kept" ;;
  *) fail "a file does not compile" ;;
esac
link() { "$nvcc" -o "$out/$1" "${@:2}" "${library[@]}" "${nccl_library[@]}" -Xcompiler -pthread; }
for name in "${programs[@]}"; do link "$name" "$out/$name.o" "$out/main.o" || fail "link"; done
link table "$out/table.o" || fail "link"
echo "built in $((SECONDS - start)) s"
$build_only && exit 0

failed=0
run() {  # SECONDS NAME [with TOOL]
  local limit=$1 name=$2 start=$SECONDS command=("$out/$2")
  if [ $# -eq 4 ]; then
    command=("$sanitizer" --tool "$4" --error-exitcode 1 --report-api-errors no "${command[@]}")
    name="$name with $4"
  fi
  echo "== $name"
  [ "$limit" -le "$(left_s)" ] || limit=$(left_s)
  if [ "$limit" -eq 0 ] && [ $# -eq 4 ]; then
    echo "$name: skipped, no time is left"
    return
  elif [ "$limit" -eq 0 ]; then
    echo "$name: FAILED, no time is left"
    failed=$((failed + 1))
    return
  fi
  timeout -k 5 "$limit" "${command[@]}"
  local status=$?
  if [ $status -eq 0 ]; then
    echo "$name: passed, $((SECONDS - start)) s"
  elif [ $status -eq 124 ] && [ $# -eq 4 ]; then
    echo "$name: nothing found in $limit s, not finished"
  else
    echo "$name: FAILED, exit status $status$([ $status -eq 124 ] && echo ' (too long)')"
    failed=$((failed + 1))
  fi
}
# Each instruction alone, then kernels, then whole rings: the first failure says most. The table
# comes before the rings, which are the longest and the likeliest to hang.
run 20 wrappers
run 20 fragments
run 40 rows
run 60 attention
run 100 table
run 70 conformance
# What the emulator would find: accesses out of bounds or unaligned, and races in shared memory.
sanitizer=$(PATH=$PATH:$cuda/bin:$cuda/compute-sanitizer command -v compute-sanitizer)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    for name in wrappers fragments rows; do
      run 40 "$name" with "$tool"
    done
  done
else
  echo "skipped: no compute-sanitizer"
fi
echo "$failed failed"
[ $failed -eq 0 ]
