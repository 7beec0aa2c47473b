# SPDX-License-Identifier: Apache-2.0
"""Compiles the attention kernels for several architectures and says what the hardware gets.

check_kernels.py BUILD ARCH=FILE,FILE... ...: each FILE is a .cu of the CUDA library in BUILD, which
is compiled for ARCH as the library was, with warnings as errors. Prints registers, stack and spills
of each kernel; fails if one spills or has a stack. An ARCH that this nvcc does not know is left out.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from flags import compile_command  # noqa: E402

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def parse(text):
    """[(mangled name, architecture, registers, stack, spilled)] of ptxas --verbose."""
    kernels, entry, frame = [], None, None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry, frame = match.groups(), None
        elif match := SPILLS.search(line):
            frame = [int(x) for x in match.groups()]
        elif (match := USED.search(line)) and entry is not None and frame is not None:
            kernels.append(entry + (int(match.group(1)), frame[0], frame[1] + frame[2]))
            entry = None
    return kernels


def short(names):
    """attention_forward_kernel<bfloat16, 128>, for each mangled name."""
    text = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True,
                          text=True).stdout
    spaces = re.compile(r"^void |dyncp::|v0::|cuda::|\(anonymous namespace\)::")
    return [re.sub(r"\(.*$", "", spaces.sub("", line)) for line in text.splitlines()]


def main():
    build, jobs = sys.argv[1], sys.argv[2:]
    failed = False
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for job in jobs:
            arch, _, files = job.partition("=")
            for name in files.split(","):
                command, directory = compile_command(build, name)
                if arch not in architectures(command):
                    print(f"left out: this nvcc has no sm_{arch}")
                    break
                command = [a for a in command if not a.startswith(("-gencode", "-Werror"))]
                source = source_of(build, name)
                run = subprocess.run(
                    command + [f"-gencode=arch=compute_{arch},code=sm_{arch}",
                               "-Werror=all-warnings", "-Xptxas=--warning-as-error", "-O3", "-c",
                               source, "-o", os.path.join(work, "kernel.o")],
                    cwd=directory, capture_output=True, text=True)
                output = run.stdout + run.stderr
                kernels = parse(output)
                if run.returncode != 0 or not kernels:
                    print(f"{name} for sm_{arch} does not compile without warnings:\n{output}")
                    failed = True
                rows += [(name,) + k for k in kernels]
    print(f"{'kernel':44}{'for':>8}{'registers':>11}{'stack':>7}{'spilled':>9}")
    for kernel, (name, _, arch, registers, stack, spilled) in zip(
            short([row[1] for row in rows]), rows):
        print(f"{kernel:44}{arch:>8}{registers:>11}{stack:>7}{spilled:>9}")
        if stack or spilled:
            print(f"  {name}: {stack} bytes of stack and {spilled} spilled; there must be none")
            failed = True
    return 1 if failed or not rows else 0


def architectures(command):
    nvcc = next(word for word in command if os.path.basename(word) == "nvcc")
    listed = subprocess.run([nvcc, "--list-gpu-code"], check=True, capture_output=True, text=True)
    return {line.strip()[3:] for line in listed.stdout.splitlines()} | {"90a", "100a"}


def source_of(build, name):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        for entry in json.load(f):
            if entry["file"].endswith(name):
                return os.path.join(entry["directory"], entry["file"])
    raise SystemExit(f"no {name} in {build}")


if __name__ == "__main__":
    sys.exit(main())
