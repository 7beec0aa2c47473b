#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the documentation is true: check_docs.py ROOT TOOL COMPILER...

- every `sh` block of docs/*.md whose lines call dyncp-plan runs, in order, in one folder
- every option of every subcommand stands in docs/options.md, and none that does not exist
- links to files of the project lead somewhere
- every `cpp` block that is a program or defines functions compiles
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def check_links(root, page, text):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        if not (page.parent / target).exists():
            yield f"{page.relative_to(root)}: no such file: {target}"


def check_commands(page, text, tool, folder):
    environment = dict(os.environ, PATH=f"{Path(tool).parent}{os.pathsep}{os.environ['PATH']}")
    for block in blocks(text, "sh"):
        if not block.startswith("dyncp-plan"):
            continue
        done = subprocess.run(["bash", "-e", "-c", block], cwd=folder, env=environment,
                              capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            yield f"{page.name}: exit {done.returncode}: {block.strip()}\n{done.stderr.strip()}"


def options_of(tool, command):
    text = subprocess.run([tool, command, "--help"], capture_output=True, text=True,
                          check=True).stdout
    return set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", text, re.MULTILINE)) - {"--help"}


def check_options(root, tool):
    page = (root / "docs/options.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for command in ("plan", "compare", "check", "generate", "describe", "presets"):
        told = set(re.findall(r"^\| `(?:-\w,)?(--[a-z-]+)", sections.get(command, ""), re.MULTILINE))
        real = options_of(tool, command)
        for missing in sorted(real - told):
            yield f"options.md: {command} {missing} is not described"
        for invented in sorted(told - real):
            yield f"options.md: {command} has no option {invented}"


def check_code(root, page, text, compiler):
    # What a user of dyncp.hpp needs besides the headers.
    flags = subprocess.run(["pkg-config", "--cflags", "eigen3"], capture_output=True, text=True,
                           check=True).stdout.split()
    for block in blocks(text, "cpp"):
        if not re.search(r"^\w[^=;]*\([^;]*\) *\{", block, re.MULTILINE):
            continue  # an excerpt of a program that is built elsewhere
        backends = [f"-I{root}/backends/{name}/include" for name in ("cpu", "cuda")]
        done = subprocess.run([*compiler, "-std=c++20", "-fsyntax-only", f"-I{root}/include",
                               *backends, f"-I{root}", *flags, "-x", "c++", "-"],
                              input="#include <utility>\n#include <vector>\n" + block,
                              capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            yield f"{page.name}: does not compile:\n{done.stderr[:2000]}"


def main():
    root, tool, compiler = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    tool = str(Path(tool).resolve())
    problems = list(check_options(root, tool))
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    with tempfile.TemporaryDirectory() as folder:
        for page in pages:
            text = page.read_text(encoding="utf-8")
            problems += check_links(root, page, text)
            if page.name == "README.md":
                continue  # its commands need a build and are run by quickstart.sh
            problems += check_commands(page, text, tool, folder)
            problems += check_code(root, page, text, compiler)
    for problem in problems:
        print(problem)
    print(f"{len(pages)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
