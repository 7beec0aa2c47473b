# SPDX-License-Identifier: Apache-2.0
"""Runs tests/gpu/check.sh with a stand-in for nvidia-smi.

run_check.py SOURCE without   it shows no GPU: check.sh says so and exits 77, and builds nothing
run_check.py SOURCE with      it shows one. Where there is a GPU indeed, all has to pass; where
                              there is none, check.sh builds all programs, starts each, counts
                              each as failed and exits 1
run_check.py SOURCE stubs     it shows one, and compilers that compile nothing: what is built again,
                              in which order programs run, and when they do not
"""
import os
import shutil
import subprocess
import sys
import tempfile

SHOWN = "GPU 0: a stand-in (UUID: GPU-0)"


def run(source, answer, status):
    with tempfile.TemporaryDirectory() as folder:
        smi = os.path.join(folder, "nvidia-smi")
        with open(smi, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
        os.chmod(smi, 0o755)
        path = folder + os.pathsep + os.environ["PATH"]
        done = subprocess.run([os.path.join(source, "tests", "gpu", "check.sh")],
                              env={**os.environ, "PATH": path}, capture_output=True, text=True)
    print(done.stdout + done.stderr)
    return done.returncode, done.stdout


def expect(holds, what):
    if not holds:
        raise SystemExit(f"not so: {what}")


NVCC = """#!/bin/bash
for word; do
  case $word in *.so.2) echo "nvcc fatal: what is $word?" >&2; exit 1 ;; esac
  [ "$last" = -o ] && out=$word
  last=$word
done
[ -z "$out" ] && exit 0
printf '#!/bin/bash\\nsleep ${STUB_S:-0}\\n' > "$out"
chmod +x "$out"
"""
PROGRAMS = ["wrappers", "fragments", "rows", "attention", "table", "conformance"]


def stubs(source):
    with tempfile.TemporaryDirectory() as folder:
        tree = os.path.join(folder, "tree")
        for part in ("backends", "include", "tests"):
            shutil.copytree(os.path.join(source, part), os.path.join(tree, part))
        cuda = os.path.join(folder, "cuda")
        nccl = os.path.join(folder, "nccl")
        for path, text in ((cuda + "/bin/nvcc", NVCC), (cuda + "/bin/g++", NVCC),
                           (cuda + "/bin/nvidia-smi", f"#!/bin/sh\necho '{SHOWN}'\n"),
                           (nccl + "/include/nccl.h", "#define NCCL_MAJOR 2\n"
                            "#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n")):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(path, 0o755)

        def check(*arguments, **environment):
            path = cuda + "/bin" + os.pathsep + os.environ["PATH"]
            done = subprocess.run(
                [os.path.join(tree, "tests", "gpu", "check.sh"), *arguments],
                env={**os.environ, "PATH": path, "CUDA_HOME": cuda, "NCCL_ROOT": nccl,
                     "CXX": "g++", **environment}, capture_output=True, text=True)
            print(done.stdout + done.stderr)
            return done.returncode, done.stdout

        def compiled(text):
            line = next(x for x in text.splitlines() if x.startswith("building for"))
            return int(line.split(", ")[1].split()[0])

        # A header of NCCL without its library is no reason to check nothing.
        code, text = check()
        expect(code == 0, "exit status 0")
        expect(f"not used: {nccl}/include/nccl.h" in text, "NCCL without its library is left out")
        started = [x[3:] for x in text.splitlines() if x.startswith("== ")]
        expect(started[:6] == PROGRAMS, "the table comes before what may hang")
        # As in the wheels.
        os.makedirs(nccl + "/lib")
        with open(nccl + "/lib/libnccl.so.2", "w", encoding="utf-8"):
            pass
        code, text = check("--build")
        expect(code == 0 and f"NCCL: {nccl}" in text, "libnccl.so.2 alone is linked")
        every = compiled(text)
        expect(compiled(check("--build")[1]) == 0, "what is built is kept")
        with open(tree + "/tests/gpu/table.hpp", "a", encoding="utf-8") as f:
            f.write("//\n")
        some = compiled(check("--build")[1])
        expect(0 < some < every, "a change of the tests leaves the library")
        with open(tree + "/backends/cuda/launch.hpp", "a", encoding="utf-8") as f:
            f.write("//\n")
        expect(compiled(check("--build")[1]) == every, "a change of the library leaves nothing")
        code, text = check(BUDGET_S="4", STUB_S="3")
        expect(code == 1 and "conformance: FAILED, no time is left" in text, "the budget ends it")


def main():
    source, mode = sys.argv[1:]
    if mode == "stubs":
        stubs(source)
        return
    if mode == "without":
        for answer, status in (("No devices were found", 6), ("", 9), ("", 0)):
            code, text = run(source, answer, status)
            expect(code == 77, "exit status 77")
            expect(text == "skipped: nvidia-smi shows no GPU on this machine\n", "one line")
        return
    subprocess.run([os.path.join(source, "tests", "gpu", "prepare.sh")], check=True)
    code, text = run(source, SHOWN, 0)
    if any(line.startswith("no GPU: ") for line in text.splitlines()):
        expect(code == 1, "exit status 1")
        for name in PROGRAMS:
            expect(f"{name}: FAILED, exit status 77" in text, f"{name} is started and fails")
    else:
        expect(code == 0, "exit status 0")
        for name in PROGRAMS:
            expect(f"{name}: passed" in text, f"{name} passes")


if __name__ == "__main__":
    main()
