#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the CUDA backend and its tests for the GPU of this machine, runs them, and prints one table
# of speeds. Needs nvcc, g++ and bash, no Meson and no network; see prepare.sh.
#
#   tests/gpu/check.sh             exit status 0: all passed; 1: something failed; 77: no GPU
#   tests/gpu/check.sh --build     builds only, GPU or not
#
# Environment: CUDA_HOME, NCCL_ROOT (folders with include and lib), CXX (default g++), JOBS (default
# all cores), GPU_ARCH (default 90a).
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
rm -rf "$out"
mkdir -p "$out/include"

headers=build/gpu-headers
if [ ! -f $headers/doctest/doctest.h ]; then
  echo '#include <doctest/doctest.h>' | $cxx -x c++ -E - > /dev/null 2>&1 ||
    fail "no doctest; run tests/gpu/prepare.sh where there is a network, bring build/gpu-headers"
fi

# NCCL comes with the toolkit, the system or PyTorch.
nccl=
python_nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2> /dev/null)
for place in "${NCCL_ROOT-}" "$cuda" /usr "$python_nccl"; do
  [ -n "$place" ] && [ -z "$nccl" ] && [ -f "$place/include/nccl.h" ] && nccl=$place
done
nccl_version=0
nccl_flags=()
nccl_library=()
if [ -n "$nccl" ]; then
  part() { sed -n "s/^#define NCCL_$1 \([0-9]*\).*/\1/p" "$nccl/include/nccl.h"; }
  nccl_version=$((10000 * $(part MAJOR) + 100 * $(part MINOR) + $(part PATCH)))
  [ "$nccl" = /usr ] || nccl_flags=(-isystem "$nccl/include")
  # The wheels have no libnccl.so, only libnccl.so.2.
  library=$(ls "$nccl"/lib*/libnccl.so* "$nccl"/lib*/*/libnccl.so* 2> /dev/null | head -n 1)
  nccl_library=("$library" -Xlinker "-rpath=$(dirname "$library")")
  [ -n "$library" ] || fail "$nccl has nccl.h and no libnccl.so"
fi

# What configure_file does in backends/cuda/meson.build.
case $arch in *a) number=${arch%a}1 ;; *) number=${arch}0 ;; esac
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
for_nvcc=("$nvcc" "${flags[@]}" -Xptxas=--warn-on-spills "-gencode=arch=compute_$arch,code=sm_$arch")
for_host=("$cxx" "${flags[@]}" -pthread -Wall -Wextra -isystem "$cuda/include")

# One command a line, what takes longest first, for as many jobs as there are cores.
commands=$out/commands
: > "$commands"
library=()
programs=()
compile() {  # NAME SOURCE [OPTION...]
  local name=$1 source=$2
  shift 2
  case $source in
    *.cu) echo "${for_nvcc[@]@Q} ${*@Q} -c $source -o $out/$name.o" ;;
    *) echo "${for_host[@]@Q} ${*@Q} -c $source -o $out/$name.o" ;;
  esac >> "$commands"
}
program() {  # NAME SOURCE: one that links the library and main.o
  compile "$1" "$2"
  programs+=("$1")
}
[ -f tests/gpu/conformance.cpp ] && program conformance tests/gpu/conformance.cpp
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
echo "building for sm_$arch, $jobs jobs; NCCL: ${nccl:-none}"
start=$SECONDS
tr '\n' '\0' < "$commands" | xargs -0 -P "$jobs" -I '{}' bash -c '{}' ||
  fail "a file does not compile"
link() { "$nvcc" -o "$out/$1" "${@:2}" "${library[@]}" "${nccl_library[@]}" -Xcompiler -pthread; }
for name in "${programs[@]}"; do link "$name" "$out/$name.o" "$out/main.o" || fail "link"; done
link table "$out/table.o" || fail "link"
echo "built in $((SECONDS - start)) s"
$build_only && exit 0

failed=0
run() {  # SECONDS NAME [ARGUMENT...]
  local limit=$1 name=$2 start=$SECONDS
  shift 2
  echo "== $name"
  timeout -k 5 "$limit" "$out/$name" "$@"
  local status=$?
  if [ $status -eq 0 ]; then
    echo "$name: passed, $((SECONDS - start)) s"
  else
    echo "$name: FAILED, exit status $status$([ $status -eq 124 ] && echo ' (too long)')"
    failed=$((failed + 1))
  fi
}
# Each instruction alone, then kernels, then whole rings: the first failure says most.
for name in wrappers fragments rows attention conformance; do
  case " ${programs[*]} " in *" $name "*) run 120 "$name" ;; esac
done
run 100 table
echo "$failed failed"
[ $failed -eq 0 ]
