# SPDX-License-Identifier: Apache-2.0
"""Runs tests/gpu/check.sh with a stand-in for nvidia-smi.

run_check.py SOURCE without   it shows no GPU: check.sh says so and exits 77, and builds nothing
run_check.py SOURCE with      it shows one. Where there is a GPU indeed, all has to pass; where
                              there is none, check.sh builds all programs, starts each, counts
                              each as failed and exits 1
"""
import os
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


def main():
    source, mode = sys.argv[1:]
    if mode == "without":
        for answer, status in (("No devices were found", 6), ("", 9), ("", 0)):
            code, text = run(source, answer, status)
            expect(code == 77, "exit status 77")
            expect(text == "skipped: nvidia-smi shows no GPU on this machine\n", "one line")
        return
    subprocess.run([os.path.join(source, "tests", "gpu", "prepare.sh")], check=True)
    code, text = run(source, SHOWN, 0)
    programs = ["wrappers", "fragments", "rows", "attention", "conformance", "table"]
    if any(line.startswith("no GPU: ") for line in text.splitlines()):
        expect(code == 1, "exit status 1")
        for name in programs:
            expect(f"{name}: FAILED, exit status 77" in text, f"{name} is started and fails")
    else:
        expect(code == 0, "exit status 0")
        for name in programs:
            expect(f"{name}: passed" in text, f"{name} passes")


if __name__ == "__main__":
    main()
