# SPDX-License-Identifier: Apache-2.0
"""`compare`, its pictures and page; `plan --batches`, `--curve` and `--trace`."""
import json
import os
import pty
import re
import subprocess
import xml.etree.ElementTree as xml

from support import GITHUB, TOOL, Tests, close

t = Tests()
SVG = "{http://www.w3.org/2000/svg}"
JOB = ["--ranks", 16, "--pp", 4, "--cp", 8, "--max-tokens-per-rank", 16384]
BATCH = ["--lengths", GITHUB, "--min-length", 16, "--max-length", 131072, "--batch", 512]


def picture(name, text):
    """The text is XML and an SVG picture whose words can be read."""
    try:
        root = xml.fromstring(text)
    except xml.ParseError as e:
        t.check(False, f"{name}: {e}")
        return []
    t.check(root.tag == SVG + "svg" and root.find(SVG + "title") is not None, f"{name}: no title")
    words = root.findall(f".//{SVG}text")
    for word in words:
        t.check(float(word.get("font-size")) >= 11, f"{name}: small text {word.text!r}")
        t.check(0 <= float(word.get("x")) <= float(root.get("width")) and
                0 <= float(word.get("y")) <= float(root.get("height")),
                f"{name}: {word.text!r} lies outside")
    return [word.text for word in words]


# The packers side by side say what each says alone.
out = t.json("compare", *BATCH, *JOB, "--json")
names = [p["packer"] for p in out["packers"]]
t.check({"packing_only", "dynamic_cp"} <= set(names), f"packers: {names}")
for p in out["packers"]:
    alone = t.json("plan", *BATCH, *JOB, "--packer", p["packer"], "--json")
    t.check(alone["statistics"] == p["statistics"], f"{p['packer']}: other numbers alone")
    bound = max(p["bounds"].values())
    t.check(bound <= p["statistics"]["makespan_s"], f"{p['packer']}: below its bound")
best = min(p["statistics"]["iteration_s"] for p in out["packers"])

code, text, err = t.run("compare", *BATCH, *JOB, "--svg", t.path("c.svg"), "--html",
                        t.path("c.html"))
t.check(code == 0, f"compare: {err}")
for word in names + ["TFLOP/s", "bubble", "imbalance", "exposed", "padding", "planned in", "bound"]:
    t.check(word in text, f"the table lacks {word!r}")
with open(t.path("c.svg"), encoding="utf-8") as f:
    svg = f.read()
words = picture("c.svg", svg)
t.check("dynamic_cp" in words and "rank 0" in words, f"c.svg: {words[:10]}")
with open(t.path("c.html"), encoding="utf-8") as f:
    html = f.read()
for i, part in enumerate(re.findall(r"<svg.*?</svg>", html, re.DOTALL)):
    picture(f"c.html picture {i}", part)
t.check(html.count("<svg") >= 4 and "<table>" in html, "c.html lacks pictures or table")
t.check("http" not in html.replace("http://www.w3.org/2000/svg", ""), "c.html needs the network")
blob = re.search(r'<script type="application/json" id="compare">\n(.*?)</script>', html, re.DOTALL)
page = json.loads(blob.group(1))
t.check(min(p["statistics"]["iteration_s"] for p in page["packers"]) == best, "c.html data")

code, text, err = t.run("compare", *BATCH, *JOB, "--packers", "dynamic_cp,packing_only")
t.check(code == 0 and text.index("dynamic_cp") < text.index("packing_only"), "--packers order")
# A packer that finds no plan is named, the others are compared.
code, text, err = t.run("compare", "--lengths", t.write("a.len", "100\n3000\n"), "--ranks", 4,
                        "--cp", 1, "--max-tokens-per-rank", 1000)
t.check(code == 0 and "sequence_too_long" in text and "packing_only made no plan" in err,
        f"one packer fails: {code} {text} {err}")
code, text, err = t.run("compare", *BATCH, *JOB, "--packers", "dynamic")
t.check(code == 2 and "did you mean dynamic_cp" in err, f"unknown packer: {err}")

# Batch after batch: the same as one by one.
out = t.json("plan", *BATCH, *JOB, "--batches", 3, "--json", "--out", t.path("b.json"))
t.check(len(out["batches"]) == 3, f"{len(out['batches'])} batches")
for i, batch in enumerate(out["batches"]):
    alone = t.json("plan", *BATCH, "--skip", 512 * i, *JOB, "--json")
    t.check(alone["statistics"] == batch["statistics"], f"batch {i} differs from its own plan")
    with open(t.path(f"b-{i}.json"), encoding="utf-8") as f:
        t.check(json.load(f) == alone, f"b-{i}.json")
t.check(sum(u["sequences"] for u in out["cp_mix"]) == 3 * 512, f"cp_mix: {out['cp_mix']}")
code, text, err = t.run("plan", *BATCH, *JOB, "--batches", "all")
t.check(code == 0 and err == "" and "31 batches" in text and "left out" in text,
        f"all batches: {code} {text[-300:]} {err}")
# The bar is on standard error and only where somebody watches it.
bar, terminal = pty.openpty()
done = subprocess.run([TOOL, "plan", *map(str, BATCH + JOB), "--batches", "5"], stderr=terminal,
                      stdout=subprocess.PIPE, timeout=60, check=False)
os.close(terminal)
shown = os.read(bar, 65536).decode()
t.check(done.returncode == 0 and "4 of 5 batches" in shown and b"of 5 batches" not in done.stdout,
        f"progress: {shown!r}")
short = t.write("short.len", "10\n20\n30\n40\n50\n60\n")
many = t.write("many.len", "500\n" * 64)
code, text, err = t.run("plan", "--lengths", many, "--batch", 32, "--ranks", 4, "--max-cp", 2,
                        "--max-tokens-per-rank", 1000, "--batches", "all")
t.check(code == 0 and "every pack has the smallest cp, 1" in text, f"hint at cp 1: {text}")
long = t.write("long.len", "4000\n3990\n3980\n")
code, text, err = t.run("plan", "--lengths", long, "--ranks", 4, "--max-tokens-per-rank", 1000)
t.check(code == 0 and "every pack has the largest cp, 4" in text, f"hint at max cp: {text}")
for arguments, pattern in [
        (["--batches", "all"], "--batches needs --batch"),
        (["--batches", "some", "--batch", 2], "batches is 'some'"),
        (["--batches", 0, "--batch", 2], "batches is '0'"),
        (["--batches", 1, "--batch", 2, "--curve"], "exclude each other"),
        (["--svg", "x.svg"], "add --curve"),
]:
    code, text, err = t.run("plan", "--lengths", short, "--ranks", 4, "--max-tokens-per-rank", 1000,
                            *arguments)
    t.check(code == 2 and pattern in err, f"{arguments}: {code} {err}")

# The curve: quotas fall as 1/M, the chosen M is none of the worst.
out = t.json("plan", *BATCH, *JOB, "--curve", "--json", "--svg", t.path("curve.svg"))
points = out["points"]
t.check(len(points) > 5, f"{len(points)} points")
for p in points:
    t.check(close(p["quota_s"] * p["micro_batches"],
                  points[0]["quota_s"] * points[0]["micro_batches"], 1e-12), f"quota of {p}")
chosen = t.json("plan", *BATCH, *JOB, "--json")["statistics"]["makespan_s"]
t.check(chosen <= 1.05 * min(p["makespan_s"] for p in points if "makespan_s" in p),
        "the curve has a far better plan than the planner")
with open(t.path("curve.svg"), encoding="utf-8") as f:
    t.check(any("chosen" in w for w in picture("curve.svg", f.read())), "curve.svg")
code, text, err = t.run("plan", *BATCH, *JOB, "--curve")
t.check(code == 0 and "knee of the makespan" in text and "####" in text, f"curve: {text} {err}")

# The trace parses and ends at the makespan.
made = t.json("plan", *BATCH, *JOB, "--trace", t.path("t.json"), "--json", "--out",
              t.path("p.json"))
with open(t.path("t.json"), encoding="utf-8") as f:
    events = json.load(f)["traceEvents"]
end = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
t.check(close(end * 1e-6, made["statistics"]["makespan_s"], 1e-9), f"the trace ends at {end}")
t.check({e["pid"] for e in events} == set(range(4)), "stages of the trace")
code, _, err = t.run("check", t.path("p.json"), "--trace", t.path("t2.json"))
with open(t.path("t.json"), "rb") as a, open(t.path("t2.json"), "rb") as b:
    t.check(a.read() == b.read(), "plan and check write different traces")
t.finish()
