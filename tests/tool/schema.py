# SPDX-License-Identifier: Apache-2.0
"""Plans that are written, judged or shown in the documentation keep to docs/plan.schema.json."""
import glob
import json
import os
import re

from support import GITHUB, ROOT, Tests

t = Tests()
with open(os.path.join(ROOT, "docs", "plan.schema.json"), encoding="utf-8") as f:
    SCHEMA = json.load(f)

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
KNOWN = {"$schema", "title", "description", "type", "required", "properties", "items", "minimum",
         "maximum", "const", "enum"}


def breaches(schema, value, where):
    """The breaches of the part of JSON Schema that our schema uses."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "const" in schema and value != schema["const"] or value not in schema.get("enum", [value]):
        return [f"{where} is {value!r}"]
    kind = TYPES.get(schema.get("type"), object)
    if not isinstance(value, kind) or kind is int and isinstance(value, bool):
        return [f"{where} is no {schema['type']}"]
    if kind is int and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return [f"{where} is {value}"]
    found = [f"{where} lacks {key}" for key in schema.get("required", []) if key not in value]
    for key, part in schema.get("properties", {}).items():
        if key in value:
            found += breaches(part, value[key], f"{where}.{key}")
    for i, item in enumerate(value if "items" in schema else []):
        found += breaches(schema["items"], item, f"{where}[{i}]")
    return found


def keeps(name, value):
    found = breaches(SCHEMA, value, name)
    t.check(not found, "; ".join(found[:5]))


for packer in ["dynamic_cp", "packing_only"]:
    keeps(packer, t.json("plan", "--lengths", GITHUB, "--batch", 300, "--drop-too-long", "--ranks",
                         16, "--cp", 8, "--max-tokens-per-rank", 16384, "--packer", packer,
                         "--json"))
for path in sorted(glob.glob(os.path.join(ROOT, "tests", "golden", "judged", "*.json"))):
    with open(path, encoding="utf-8") as f:
        keeps(os.path.basename(path), json.load(f)["plan"])

# The example of the documentation is a valid plan.
with open(os.path.join(ROOT, "docs", "plan-format.md"), encoding="utf-8") as f:
    text = f.read()
shown = re.search(r"```json\n(.*?)```", text, re.DOTALL).group(1)
keeps("plan-format.md", json.loads(shown))
out = t.json("check", t.write("shown.json", shown), "--json")
t.check(out.get("valid"), f"plan-format.md: {out}")
for kind in ["missing_sample", "duplicate_sample", "rank_overlap", "mixed_cp"]:
    t.check(kind in text, f"plan-format.md does not name {kind}")

# The checker itself finds breaches.
t.check(breaches(SCHEMA, {}, "x") != [], "an empty object is no plan")
t.check(breaches(SCHEMA, {**json.loads(shown), "num_ranks": 0}, "x") == ["x.num_ranks is 0"],
        "0 ranks")
t.finish()
