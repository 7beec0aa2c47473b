#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copies what tests/gpu/check.sh needs and a machine with a GPU may lack, a test library of headers,
# into build/gpu-headers, which git ignores. Run it where there is a network, then take the folder
# along with the sources.
set -eu
cd "$(dirname "$0")/../.."
. tests/packages.sh

to=build/gpu-headers
need doctest-dev
from=$(echo '#include <doctest/doctest.h>' | ${CXX:-g++} -x c++ -E -M - |
  tr ' \\' '\n\n' | grep 'doctest/doctest\.h$' | head -n 1)
[ -n "$from" ] || { echo "prepare.sh: no doctest/doctest.h here" >&2; exit 1; }
mkdir -p "$to/doctest"
cp "$from" "$to/doctest/doctest.h"
echo "$to: doctest from $from"
