# SPDX-License-Identifier: Apache-2.0
"""What the tests of dyncp-plan share: running it in an empty folder, and collecting failures."""
import json
import os
import subprocess
import sys
import tempfile

TOOL = os.path.abspath(sys.argv[1])  # Meson gives it relative to the build
ROOT = os.path.abspath(sys.argv[2])
GITHUB = os.path.join(ROOT, "examples", "data", "github.len")


class Tests:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="dyncp_tool_")
        self.failures = []
        self.checks = 0

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, content):
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        with open(self.path(name), "wb") as f:
            f.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)

    def run(self, *arguments, stdin=b"", timeout=60):
        """Status, stdout, stderr; a crash or a hang is a failure by itself."""
        command = [TOOL, *map(str, arguments)]
        try:
            done = subprocess.run(command, cwd=self.folder.name, input=stdin, timeout=timeout,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired:
            self.check(False, f"{command} did not end in {timeout} s")
            return None, "", ""
        if done.returncode not in (0, 1, 2):
            self.check(False, f"{command} ended with {done.returncode}: {done.stderr}")
        return (done.returncode, done.stdout.decode(errors="replace"),
                done.stderr.decode(errors="replace"))

    def json(self, *arguments, status=0):
        code, out, err = self.run(*arguments)
        self.check(code == status, f"{arguments}: status {code} instead of {status}: {err}")
        try:
            return json.loads(out)
        except ValueError as e:
            self.check(False, f"{arguments} printed no JSON: {e}: {out[:200]}")
            return {}

    def check(self, condition, message):
        self.checks += 1
        if not condition:
            self.failures.append(message)
            print("FAILED:", message)

    def finish(self):
        print(f"{self.checks} checks, {len(self.failures)} failed")
        sys.exit(1 if self.failures else 0)


def close(value, expected, relative):
    return abs(value - expected) <= relative * abs(expected)
