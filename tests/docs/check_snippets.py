#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_snippets.py PAGE SOURCE: the code of a page is code that is built and run.

Every `cpp` block of the page is the text between two marks `// [name]` of the source, without its
common indentation; every part that is marked stands in the page.
"""
import re
import sys
import textwrap


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        page = f.read()
    with open(sys.argv[2], encoding="utf-8") as f:
        source = f.read()
    marked = {name: textwrap.dedent(body) for name, body in re.findall(
        r"^ *// \[(\w+)\]\n(.*?)^ *// \[\1\]\n", source, re.MULTILINE | re.DOTALL)}
    shown = re.findall(r"^```cpp\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    problems = [f"not in the source:\n{block}" for block in shown if block not in marked.values()]
    problems += [f"not in the page: {name}" for name, body in marked.items() if body not in shown]
    print("\n".join(problems) if problems else f"{len(shown)} blocks")
    return 1 if problems or not marked else 0


if __name__ == "__main__":
    sys.exit(main())
