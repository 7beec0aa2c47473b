#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds digest_main.cpp in several ways and compares what it prints.

same_on_every_build.py ROOT: g++ and clang++ (where found), -O0, -O2, -O3 -march=native, and 1 to 8
threads. Exit 77 when fewer than two builds could be made.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BUILDS = [("g++", ["-O2"]), ("g++", ["-O0"]), ("g++", ["-O3", "-march=native"]),
          ("clang++", ["-O2"]), ("clang++", ["-O3", "-march=native", "-ffp-contract=fast"])]


def main():
    root = Path(sys.argv[1])
    source = root / "tests/planner/digest_main.cpp"
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        for compiler, flags in BUILDS:
            if shutil.which(compiler) is None:
                continue
            program = f"{folder}/digest"
            subprocess.run([compiler, "-std=c++20", *flags, f"-I{root}/include", str(source), "-o",
                            program, "-pthread"], check=True)
            for threads in ("1", "3", "8"):
                name = f"{compiler} {' '.join(flags)}, {threads} threads"
                seen[name] = subprocess.run([program, threads], check=True, capture_output=True,
                                            text=True).stdout
    if len(seen) < 6:
        print("fewer than two compilers or levels")
        return 77
    first = next(iter(seen))
    print(seen[first], end="")
    different = [name for name, text in seen.items() if text != seen[first]]
    for name in different:
        print(f"{name} differs from {first}:\n{seen[name]}")
    print(f"{len(seen)} runs, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
