# SPDX-License-Identifier: Apache-2.0
"""Configures, builds and runs examples/subproject with a copy of this tree in its subprojects/."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile


def run(*command):
    print("$", shlex.join(command), flush=True)
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout)
    if done.returncode != 0:
        raise SystemExit(f"status {done.returncode}")
    return done.stdout


def main():
    root = sys.argv[1]
    with tempfile.TemporaryDirectory() as work:
        project = os.path.join(work, "project")
        shutil.copytree(os.path.join(root, "examples", "subproject"), project)
        # What a parent gets by git clone, without what cannot matter to it.
        shutil.copytree(root, os.path.join(project, "subprojects", "dyncp"),
                        ignore=shutil.ignore_patterns("build*", ".*", "data", "golden"))
        build = os.path.join(work, "build")
        output = run("meson", "setup", build, project, "--wrap-mode=nodownload",
                     "--force-fallback-for=dyncp", "--fatal-meson-warnings")
        looked_for = [line for line in output.splitlines() if re.search(
            r"(?i)\b(doctest|cuda|nvcc|mpi|nccl|cli11|benchmark|nlohmann_json)\b.*found", line)]
        if looked_for:
            raise SystemExit("a vendored dyncp looks for what it does not need:\n"
                             + "\n".join(looked_for))
        run("ninja", "-C", build)
        run("meson", "test", "-C", build, "--no-rebuild", "trainer")
        targets = run("ninja", "-C", build, "-t", "targets", "all")
        if "test_main" in targets or "dyncp-plan" in targets:
            raise SystemExit("a vendored dyncp builds targets of its own")
    print("vendored, built and run")


if __name__ == "__main__":
    main()
