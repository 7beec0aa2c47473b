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
# The tests that judge plans, layouts and one ring; tests/run.sh runs all of them.
tests="test_core_result test_plan_validate test_sim_brute test_io_judged test_io_peers
  test_planner_beats_peers test_thd_known_failures"
known=
quietly "configuring" meson setup $reconfigure "$build" --wrap-mode=nofallback \
  -Dbuildtype=release -Dcuda=disabled -Dnccl=disabled -Dmpi=disabled -Dbench=disabled
for test in $tests; do
  if ninja -C "$build" -t query "tests/$test" > /dev/null 2>&1; then known="$known tests/$test"; fi
done
# shellcheck disable=SC2086
quietly "building" ninja -C "$build" examples/minimal examples/plan/dyncp-plan \
  examples/ring_attention/ring_attention $known
for test in $known; do quietly "running $test" "$build/$test"; done

tool=$build/examples/plan/dyncp-plan
job="--lengths examples/data/github.len --min-length 16 --max-length 131072 --batch 2048 --pp 8
  --max-tokens-per-rank 16384 --model reference-13b --cluster reference-13b"

echo
echo "== the smallest program: examples/minimal/main.cpp"
"$build/examples/minimal"

echo
echo "== 2,048 files of public repositories, a 13B model, 8 pipeline stages, 32 ranks"
# shellcheck disable=SC2086
"$tool" plan $job --ranks 32 --out "$build/plan.json" --trace "$build/trace.json"
"$tool" check "$build/plan.json" > /dev/null && echo "the validator accepts $build/plan.json"

echo
echo "== simulated seconds an iteration, beside the plans that published schedulers made"
for ranks in 8 32 64; do
  # shellcheck disable=SC2086
  "$tool" plan $job --ranks "$ranks" --json > "$build/plan-$ranks.json"
done
python3 - "$build" << 'PYTHON'
import json
import sys

with open("tests/golden/peers.json", encoding="utf-8") as file:
    peers = json.load(file)["records"]
print(f"{'ranks':>5} {'dyncp':>9} {'best published':>15}  {'by':<20} {'speed-up':>8}")
for ranks in (8, 32, 64):
    with open(f"{sys.argv[1]}/plan-{ranks}.json", encoding="utf-8") as file:
        ours = json.load(file)["statistics"]["iteration_s"]
    rows = [(r["pp8_fix"]["iteration_s"], r["scheduler"]) for r in peers
            if r["trace"] == "github" and r["ranks"] == ranks and r["pp8_fix"]["valid"]]
    best, name = min(rows)
    print(f"{ranks:>5} {ours:>8.2f}s {best:>14.2f}s  {name:<20} {best / ours:>7.2f}x")
PYTHON

echo
echo "== packers side by side"
# shellcheck disable=SC2086
"$tool" compare $job --ranks 32 --cp 8 --svg "$build/before-after.svg" --html "$build/report.html"

if [ -x "$build/examples/ring_attention/ring_attention" ]; then
  echo
  echo "== a plan carried out by 8 ranks (threads): ring attention against dense attention"
  "$build/examples/ring_attention/ring_attention" examples/data/github.len
fi

echo
echo "pictures: $build/before-after.svg, $build/report.html; timeline: $build/trace.json (ui.perfetto.dev)"
