#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of three plans with callgrind and compares them with the recorded ones.

instruction_counts.py ROOT [--record]. More than 5 % above fails: wall times vary, counts do not.
The counts belong to one compiler; exit 77 on another, or without valgrind.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = [(2048, 8), (2048, 64), (8192, 256)]


def main():
    root = Path(sys.argv[1])
    golden = root / "tests/golden/instructions.json"
    if shutil.which("valgrind") is None or shutil.which("g++") is None:
        print("valgrind or g++ is missing")
        return 77
    # g++ answers one question a call.
    compiler = [subprocess.run(["g++", question], capture_output=True, text=True,
                               check=True).stdout.strip()
                for question in ["-dumpfullversion", "-dumpmachine"]]
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/plan_once"
        subprocess.run(["g++", "-std=c++20", "-O2", "-DNDEBUG", f"-I{root}/include",
                        str(root / "tests/planner/plan_once.cpp"), "-o", program], check=True)
        for batch, ranks in CASES:
            done = subprocess.run(["valgrind", "--tool=callgrind",
                                   f"--callgrind-out-file={folder}/out", program, str(batch),
                                   str(ranks)],
                                  capture_output=True, text=True, check=True,
                                  # Meson's MALLOC_PERTURB_ would be counted too.
                                  env={"PATH": os.environ["PATH"]})
            counts[f"{batch} sequences, {ranks} ranks"] = int(
                re.search(r"Collected : (\d+)", done.stderr).group(1))
    if "--record" in sys.argv:
        what = "Instructions of tests/planner/plan_once.cpp by callgrind"
        golden.write_text(json.dumps({"what": what, "compiler": compiler, "counts": counts},
                                     indent=1) + "\n", encoding="utf-8")
        print(counts)
        return 0
    recorded = json.loads(golden.read_text(encoding="utf-8"))
    if recorded["compiler"] != compiler:
        print(f"recorded with {recorded['compiler']}, this is {compiler}")
        return 77
    failed = False
    for name, count in counts.items():
        before = recorded["counts"][name]
        print(f"{name}: {count} instructions, {100 * (count / before - 1):+.2f} %")
        failed = failed or count > 1.05 * before
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
