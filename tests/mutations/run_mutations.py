# SPDX-License-Identifier: Apache-2.0
"""Shows that the tests bite: plants one bug at a time and expects a test to fail.

Each *.patch beside this file says what it breaks (What:), which test has to notice (Test:, a source
under tests) and which part of it to run (Args:). The tree is copied, the patch applied to the copy,
the test rebuilt from it and run; a test that passes lets a mutation survive. First every test runs
unpatched, so that a failure means the mutation. A patch that no longer applies is an error.

Where a patch names kernels (Emulated:), it changes what these are made of and nothing that the test
includes: they are compiled from the copy and linked before the emulated library of --build, which
has the rest. Linked: emulation is for headers of the CUDA backend: the test is compiled from the
copy and linked to both emulated libraries. Without CUDA's headers there is none, and such patches
are left out.

--emulated runs the mutations of what all backends share once more, on emulated GPUs: conformance/
cuda_ring.cpp and so on in place of threads_ring.cpp.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from flags import compile_command  # noqa: E402

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def read_patch(path):
    """({field: value}, {file: [(first line, old lines, new lines)]})."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().splitlines()
    fields, files, name, hunk = {}, {}, None, None
    for line in lines:
        if name is None and not line.startswith("---"):
            key, colon, value = line.partition(": ")
            if colon:
                fields[key] = value
        elif line.startswith("--- "):
            name = ""
        elif line.startswith("+++ b/"):
            name = line[6:]
            files[name] = []
        elif match := HUNK.match(line):
            hunk = (int(match.group(1)), [], [])
            files[name].append(hunk)
        elif hunk is not None:
            if line[:1] in (" ", "-", ""):
                hunk[1].append(line[1:])
            if line[:1] in (" ", "+", ""):
                hunk[2].append(line[1:])
    return fields, files


def on_emulated_gpus(fields):
    """The fields of a mutation of what all backends share, for the same suite on emulated GPUs."""
    out = dict(fields)
    out["Test"] = fields["Test"].replace("/threads_", "/cuda_")
    out["Linked"] = "emulation"
    out["Fabric"] = "nccl"
    if "Args" in out:
        out["Args"] += ",a small case*"  # which has the most orders of streams
    return out


def apply(files, tree):
    for name, hunks in files.items():
        path = os.path.join(tree, name)
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
        for first, old, new in reversed(hunks):
            # Lines move as the code around them changes; the text has to be there once.
            places = [i for i in range(len(lines) - len(old) + 1) if lines[i:i + len(old)] == old]
            if not places:
                raise SystemExit(f"{name}:{first}: the patch does not apply; bring it up to date")
            place = min(places, key=lambda i: abs(i - first + 1))
            lines[place:place + len(old)] = new
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="build directory, for compiler and flags")
    parser.add_argument("--source", required=True, help="root of the project")
    parser.add_argument("--work", required=True, help="directory for copies and programs")
    parser.add_argument("--emulated", action="store_true", help="the shared ones on emulated GPUs")
    parser.add_argument("--only", default="", help="run the mutations with this in their name")
    options = parser.parse_args()
    source = os.path.abspath(options.source)
    work = os.path.abspath(options.work)
    os.makedirs(work, exist_ok=True)
    like = "tests/conformance/threads_ring.cpp"
    command, directory = compile_command(options.build, like)
    main_object = os.path.join(work, "main.o")
    archives = [os.path.join(options.build, "tests", "emulation", f"lib{name}.a")
                for name in ("emulated_cuda", "emulator")]
    emulation = all(os.path.exists(a) for a in archives)
    compiled_tests = {}  # of kernels, which no mutation changes

    def compile_unit(like, tree, unit, target):
        """`unit` as the build compiles `like`, from the copy."""
        words, where = compile_command(options.build, like)
        words = [re.sub(r"^(-I|-isystem)(.+)$",
                        lambda m: m.group(1) + redirect(m.group(2), tree, where), a)
                 for a in words]
        return subprocess.run(words + ["-O2", "-w", "-c", unit, "-o", target], cwd=where,
                              capture_output=True, text=True)

    def build_emulated(tree, test, kernels, program):
        if test not in compiled_tests:
            target = os.path.join(work, os.path.basename(test) + ".o")
            # Not `test` itself: some are compiled for the GPU, too.
            result = compile_unit("tests/emulation/attention_races.cpp", source,
                                  os.path.join(source, test), target)
            if result.returncode != 0:
                return result
            compiled_tests[test] = target
        objects = [compiled_tests[test]]
        for kernel in kernels:
            name = f"emulated_{kernel}.cpp"
            target = os.path.join(work, kernel + ".o")
            unit = os.path.join(options.build, "tests", "emulation", name)
            result = compile_unit(name, tree, unit, target)
            if result.returncode != 0:
                return result
            objects.append(target)
        compiler = next(a for a in command if not a.endswith("ccache"))
        return subprocess.run([compiler] + objects + [main_object] + archives +
                              ["-o", program, "-pthread"], capture_output=True, text=True)

    def build_linked(tree, fields, program):
        test = fields["Test"]
        define = [f"-DDYNCP_TEST_FABRIC={fields['Fabric']}_kind"] if "Fabric" in fields else []
        words, where = compile_command(options.build, "tests/emulation/local_fabric.cpp")
        words = [re.sub(r"^(-I|-isystem)(.+)$",
                        lambda m: m.group(1) + redirect(m.group(2), tree, where), a)
                 for a in words]
        result = subprocess.run(words + define + ["-O1", "-w", "-c", os.path.join(tree, test), "-o",
                                                  program + ".o"], cwd=where,
                                capture_output=True, text=True)
        if result.returncode != 0:
            return result
        compiler = next(a for a in command if not a.endswith("ccache"))
        return subprocess.run([compiler, program + ".o", main_object] + archives +
                              ["-o", program, "-pthread"], capture_output=True, text=True)

    def build(tree, fields, program):
        test = fields["Test"]
        if "Linked" in fields:
            return build_linked(tree, fields, program)
        if "Emulated" in fields:
            return build_emulated(tree, test, fields["Emulated"].split(), program)
        # Paths of the project in the flags lead to the copy.
        flags = [a.replace(source + os.sep, tree + os.sep) for a in command]
        flags = [re.sub(r"^(-I|-isystem)(.*)$", lambda m: m.group(1) + redirect(m.group(2), tree), a)
                 for a in flags]
        unit = os.path.join(tree, test)
        result = subprocess.run(flags + ["-O1", "-w", "-c", unit, "-o", program + ".o"],
                                cwd=directory, capture_output=True, text=True)
        if result.returncode == 0:
            # The compiler is the first word that is no wrapper.
            compiler = next(a for a in command if not a.endswith("ccache"))
            result = subprocess.run([compiler, program + ".o", main_object, "-o", program,
                                     "-pthread"], capture_output=True, text=True)
        return result

    def redirect(path, tree, where=directory):
        full = os.path.normpath(os.path.join(where, path))
        inside = full == source or full.startswith(source + os.sep)
        build_dir = os.path.abspath(options.build)
        if inside and not full.startswith(build_dir + os.sep):
            return os.path.join(tree, os.path.relpath(full, source))
        return full

    def run(program, arguments):
        try:
            result = subprocess.run([program] + arguments, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            return "hangs", ""
        if result.returncode == 0:
            return "passes", result.stdout
        return "fails" if result.returncode > 0 else f"signal {-result.returncode}", result.stdout

    def copy_tree():
        tree = os.path.join(work, "tree")
        shutil.rmtree(tree, ignore_errors=True)
        for part in ("include", "backends", os.path.join("tests", "support"),
                     os.path.join("tests", "conformance"), os.path.join("tests", "backends"),
                     os.path.join("tests", "emulation")):
            shutil.copytree(os.path.join(source, part), os.path.join(tree, part))
        return tree

    result = subprocess.run(command + ["-O0", "-w", "-c",
                                       os.path.join(source, "tests", "support", "main.cpp"), "-o",
                                       main_object], cwd=directory)
    if result.returncode != 0:
        return 1
    patches = [p for p in sorted(glob.glob(os.path.join(os.path.dirname(__file__), "*.patch")))
               if options.only in os.path.basename(p)]
    mutations = [(os.path.basename(p)[:-6],) + read_patch(p) for p in patches]
    if not emulation:
        kept = [m for m in mutations if "Emulated" not in m[1] and "Linked" not in m[1]]
        print(f"no CUDA headers: {len(mutations) - len(kept)} mutations of CUDA are left out")
        mutations = kept
    if options.emulated:
        if not emulation:
            print("no CUDA headers: nothing to run on")
            return 77
        mutations = [(name, on_emulated_gpus(fields), files) for name, fields, files in mutations
                     if fields["Test"].startswith("tests/conformance/threads_") and
                     all(f.startswith("include/") for f in files)]
    failed = 0
    tree = copy_tree()
    unpatched = {(fields["Test"], fields.get("Fabric", "")):
                 {**fields, "Emulated": ""} if "Emulated" in fields else fields
                 for _, fields, _ in mutations}
    for (test, _), fields in sorted(unpatched.items()):
        program = os.path.join(work, "clean")
        built = build(tree, fields, program)
        outcome = "does not build" if built.returncode != 0 else run(program, [])[0]
        if outcome != "passes":
            print(f"{test} {outcome} without a mutation\n{built.stderr[-2000:]}")
            return 1
    rows = []
    for name, fields, files in mutations:
        start = time.monotonic()
        tree = copy_tree()
        apply(files, tree)
        program = os.path.join(work, "mutant")
        built = build(tree, fields, program)
        arguments = [fields["Args"]] if "Args" in fields else []
        first = ""
        if built.returncode != 0:
            outcome = "does not build"
            print(built.stderr[-2000:])
        else:
            outcome, output = run(program, arguments)
            found = re.search(r"TEST CASE:\s*(.*)", output)
            first = found.group(1) if found else ""
        caught = outcome not in ("passes", "does not build")
        failed += not caught
        rows.append((name, fields["What"], "caught" if caught else "SURVIVED", outcome, first))
        print(f"{rows[-1][2]:9}{name} ({outcome}, {time.monotonic() - start:.0f} s)", flush=True)
    print("\n| mutation | what it breaks | | by |\n| --- | --- | --- | --- |")
    for name, what, verdict, outcome, first in rows:
        print(f"| {name} | {what} | {verdict} | {first or outcome} |")
    print(f"\n{len(rows) - failed} of {len(rows)} mutations caught")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
