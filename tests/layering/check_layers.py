# SPDX-License-Identifier: Apache-2.0
"""Checks what the headers include, against the picture of the library:

- a folder includes only folders above it; core and thd only core (and thd) and the standard library
- range-v3, {fmt} and Eigen stay out of core and thd, nlohmann-json out of all but io/json.hpp
- dyncp.hpp is a sorted list of all headers except the formatters and io/json.hpp
- include/meson.build lists exactly the headers that exist
- every header has a licence line and #pragma once

With --fix ROOT it rewrites the two lists from the headers that exist.
"""
import os
import re
import sys

ORDER = ["core", "problem", "cost", "plan", "sim", "packers", "planner", "thd", "runtime",
         "attention", "trainer", "io"]
DEVICE_TIER = {"core", "thd"}  # also compiled in .cu files
HEAVY = re.compile(r"^(range/v3/|fmt/|Eigen/|unsupported/Eigen/)")
NOT_IN_UMBRELLA = {"io/json.hpp", "io/format.hpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def headers_of(include):
    found = set()
    for folder, _, names in os.walk(include):
        for name in names:
            if name.endswith(".hpp"):
                path = os.path.join(folder, name)
                found.add(os.path.relpath(path, include).replace(os.sep, "/"))
    found.discard("dyncp.hpp")
    return found


def fix(root):
    include = os.path.join(root, "include", "dyncp")
    found = sorted(headers_of(include))
    lists = "".join(
        f"  '{folder}': [\n"
        + "".join(f"    '{h.split('/')[1]}',\n" for h in found if h.startswith(folder + "/"))
        + "  ],\n" for folder in ORDER)
    path = os.path.join(root, "include", "meson.build")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r"^dyncp_headers = \{\n.*?^\}$", lambda _: f"dyncp_headers = {{\n{lists}}}",
                  text, count=1, flags=re.MULTILINE | re.DOTALL)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    with open(os.path.join(include, "dyncp.hpp"), "w", encoding="utf-8") as f:
        f.write("// SPDX-License-Identifier: Apache-2.0\n#pragma once\n\n")
        f.writelines(f"#include <dyncp/{h}>\n" for h in found if h not in NOT_IN_UMBRELLA)


def check(root, listed):
    problems = []
    include = os.path.join(root, "include", "dyncp")
    found = headers_of(include)
    for header in sorted(found - listed):
        problems.append(f"{header} is not listed in include/meson.build")
    for header in sorted(listed - found):
        problems.append(f"{header} is listed in include/meson.build but does not exist")

    for header in sorted(found):
        folder = header.split("/")[0]
        if folder not in ORDER or header.count("/") != 1:
            problems.append(f"{header} lies in no known folder")
            continue
        with open(os.path.join(include, header), encoding="utf-8") as f:
            text = f.read()
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
            problems.append(f"{header} does not begin with its licence line")
        if "\n#pragma once\n" not in text:
            problems.append(f"{header} has no #pragma once")
        for target in INCLUDE.findall(text):
            if target == "dyncp/dyncp.hpp":
                problems.append(f"{header} includes the umbrella header")
            elif target.startswith("dyncp/"):
                other = target.split("/")[1]
                if other not in ORDER:
                    problems.append(f"{header} includes {target}, of no known folder")
                elif ORDER.index(other) > ORDER.index(folder):
                    problems.append(f"{header} includes {target}, which lies below it")
                elif folder in DEVICE_TIER and other not in DEVICE_TIER:
                    problems.append(f"{header} is for .cu files and includes {target}")
                if target[len("dyncp/"):] not in found:
                    problems.append(f"{header} includes {target}, which does not exist")
            if HEAVY.match(target) and folder in DEVICE_TIER:
                problems.append(f"{header} is for .cu files and includes {target}")
            if target.startswith("nlohmann/") and header != "io/json.hpp":
                problems.append(f"{header} includes {target}; only io/json.hpp may")

    with open(os.path.join(include, "dyncp.hpp"), encoding="utf-8") as f:
        umbrella = f.read()
    targets = [t[len("dyncp/"):] for t in INCLUDE.findall(umbrella) if t.startswith("dyncp/")]
    if targets != sorted(targets):
        problems.append("dyncp.hpp is not sorted")
    for header in sorted(found - set(targets) - NOT_IN_UMBRELLA):
        problems.append(f"dyncp.hpp lacks {header}")
    for header in sorted(set(targets) & NOT_IN_UMBRELLA):
        problems.append(f"dyncp.hpp includes {header}, which is for those who ask for it")
    for line in umbrella.splitlines():
        if line and not line.startswith(("//", "#pragma once", "#include <dyncp/")):
            problems.append(f"dyncp.hpp holds more than includes: {line}")
    return problems


def main():
    if sys.argv[1] == "--fix":
        fix(sys.argv[2])
        return 0
    problems = check(sys.argv[1], set(sys.argv[2:]))
    print("\n".join(problems) if problems else "layers hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
