#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds each libFuzzer target with clang's sanitizers and runs it for some seconds.

run_fuzzers.py ROOT SECONDS. Exit 77 where clang or its fuzzer runtime is missing.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SEEDS = {
    "lengths": ["12\n7\n# comment\n", "3 4\n5,6\n", "9223372036854775808\n"],
    "plan_json": ['{"format":"dyncp-plan-1","num_ranks":2,"max_tokens_per_rank":9,"seqlens":[5,6],'
                  '"micro_batches":[{"groups":[{"start":0,"size":1,"samples":[0]},'
                  '{"start":1,"size":1,"samples":[1]}]}]}'],
    "planner": ["0123456789abcdef0123456789abcdef"],
}


def main():
    root, seconds = Path(sys.argv[1]), sys.argv[2]
    if shutil.which("clang++") is None:
        print("no clang++")
        return 77
    eigen = subprocess.run(["pkg-config", "--cflags", "eigen3"], capture_output=True, text=True,
                           check=True).stdout.split()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, seeds in SEEDS.items():
            program = f"{folder}/{name}"
            built = subprocess.run(
                ["clang++", "-std=c++20", "-O1", "-g", "-fsanitize=fuzzer,address,undefined",
                 f"-I{root}/include", f"-I{root}/tests", *eigen, f"{root}/tests/fuzz/{name}.cpp", "-o",
                 program], capture_output=True, text=True, check=False)
            if built.returncode != 0:
                if "libclang_rt.fuzzer" in built.stderr:
                    print("no fuzzer runtime")
                    return 77
                print(built.stderr)
                return 1
            corpus = Path(folder) / f"{name}.corpus"
            corpus.mkdir()
            for i, seed in enumerate(seeds):
                (corpus / str(i)).write_text(seed, encoding="utf-8")
            done = subprocess.run([program, str(corpus), f"-max_total_time={seconds}", "-timeout=20",
                                   "-rss_limit_mb=4096", "-max_len=4096", "-verbosity=0",
                                   "-print_final_stats=1"],
                                  cwd=folder, capture_output=True, text=True, check=False)
            runs = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
            print(name, "exit", done.returncode, *runs)
            if done.returncode != 0:
                failed += 1
                print(done.stderr[-4000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
