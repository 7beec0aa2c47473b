# SPDX-License-Identifier: Apache-2.0
"""Bad input: a message that names the value, exit status 1 or 2, no crash and no hang."""
import copy
import os
import re
import subprocess

from support import TOOL, Tests

t = Tests()
good = t.write("good.len", "100\n200\n300\n400\n")


def refused(what, status, pattern, *arguments, stdin=b""):
    """The tool ends with `status` and its stderr matches `pattern`."""
    code, out, err = t.run(*arguments, stdin=stdin)
    t.check(code == status, f"{what}: status {code} instead of {status}: {err}")
    if "invalid_plan" in err:  # the report on stdout lists every violation
        err += out
    else:
        t.check("hint:" in err, f"{what}: no hint in {err!r}")
        t.check(out == "" or "--json" in arguments, f"{what}: {out!r} on stdout")
    t.check(re.search(pattern, err), f"{what}: no {pattern!r} in {err!r}")


def plan(lengths=good, ranks=4, limit=1000, *more):
    return ["plan", "--lengths", lengths, "--ranks", ranks, "--max-tokens-per-rank", limit, *more]


def lengths_file(what, status, pattern, content, *more):
    refused(what, status, pattern, *plan(t.write("bad.len", content), 4, 1000, *more))


code, _, err = t.run(*plan())
t.check(code == 0, f"the good file is refused: {err}")

# Length files
lengths_file("an empty file", 1, r"empty_input: .*bad\.len holds no length", "")
lengths_file("only comments", 1, r"empty_input", "# nothing\n\n")
lengths_file("a malformed line", 1, r"bad\.len line 2: 'abc' is not a length", "5\nabc\n6\n")
lengths_file("two numbers on a line", 1, r"line 1: '5 6' is not a length", "5 6\n")
lengths_file("a fraction", 1, r"line 1: '5\.5' is not a length", "5.5\n")
lengths_file("bytes that are no text", 1, r"line 1: .*is not a length", b"\x00\xff\xfe\n")
lengths_file("length 0", 1, r"bad\.len line 2: the sequence has length 0", "5\n0\n6\n")
lengths_file("a negative length", 1, r"bad\.len line 2: the sequence has length -7", "5\n-7\n")
lengths_file("2^63", 1, r"overflow: .*line 1: '9223372036854775808'", "9223372036854775808\n")
lengths_file("2^63 - 1", 1, r"invalid_length: .*9223372036854775807", "9223372036854775807\n")
lengths_file("over 2^40", 1, r"1099511627777.*\n.*limit 1099511627776", "1099511627777\n")
lengths_file("a pack over 2^31 - 1 tokens", 1, r"overflow: .*3000000000.*bad\.len line 2",
             "5\n3000000000\n", "--max-tokens-per-rank", "4000000000")
lengths_file("longer than every group can hold", 1,
             r"sequence_too_long: .*5000 tokens.*holds 4000 \(.*bad\.len line 2\)", "5\n5000\n")
lengths_file("two too long: what the hint asks for is enough for both", 1,
             r"sequence_too_long: .*8000 tokens.*holds 4000 \(.*bad\.len line 3\)"
             r"[\s\S]*--max-tokens-per-rank to 2000,", "5\n5000\n8000\n6000\n")
lengths_file("longer than the static group", 1, r"sequence_too_long: .*1500 tokens.*holds 1000",
             "5\n1500\n", "--packer", "packing_only")
lengths_file("all filtered", 1, r"empty_input: no sequence is left of the 2", "5\n6\n",
             "--min-length", "10")
lengths_file("all dropped", 1, r"empty_input: .*1 too long", "5000\n", "--drop-too-long")
lengths_file("all skipped", 1, r"empty_input: .*2 skipped", "5\n6\n", "--skip", "9")
refused("no such file", 2, r"io_error: cannot open 'no\.len'", *plan("no.len"))
refused("a folder", 2, r"io_error: cannot read", *plan(t.folder.name))
refused("empty standard input", 1, r"empty_input: standard input", *plan("-"))

# Options
for what, option, value, pattern in [
        ("R = 0", "--ranks", 0, r"ranks is 0"),
        ("R = -1", "--ranks", -1, r"ranks is -1"),
        ("R over 2^20", "--ranks", 2000000, r"ranks is 2000000"),
        ("R over 32 bits", "--ranks", 99999999999, r"ranks is 99999999999"),
        ("R over 64 bits", "--ranks", 99999999999999999999, r"99999999999999999999 does not fit"),
        ("R no number", "--ranks", "many", r"--ranks: 'many' is not a whole number"),
        ("limit 0", "--max-tokens-per-rank", 0, r"max-tokens-per-rank is 0"),
        ("limit below 0", "--max-tokens-per-rank", -5, r"max-tokens-per-rank is -5"),
        ("R not a multiple of cp", "--cp", 3, r"ranks 4 is not a multiple of static cp 3"),
        ("cp 0", "--cp", 0, r"static cp is 0"),
        ("min-cp 3", "--min-cp", 3, r"min-cp is 3"),
        ("min-cp 0", "--min-cp", 0, r"min-cp is 0"),
        ("min-cp over R", "--min-cp", 8, r"min-cp 8 is over max-cp 4"),
        ("max-cp over R", "--max-cp", 8, r"max-cp is 8"),
        ("max-cp 3", "--max-cp", 3, r"max-cp is 3"),
        ("max-cp 0", "--max-cp", 0, r"max-cp is 0"),
        ("pp 0", "--pp", 0, r"pp is 0"),
        ("tp 0", "--tp", 0, r"tp is 0"),
        ("vpp 0", "--vpp", 0, r"vpp is 0"),
        ("M 0", "--micro-batches", 0, r"micro-batches is 0"),
        ("batch 0", "--batch", 0, r"batch is 0"),
        ("batch -1", "--batch", -1, r"batch is -"),
        ("skip -1", "--skip", -1, r"skip is -1"),
        ("min-length -1", "--min-length", -1, r"min-length -1"),
        ("model", "--model", "reference-13c", r"no model is named 'reference-13c'[^$]*reference-13b"),
        ("model file", "--model", "no.json", r"cannot open 'no\.json'"),
        ("cluster", "--cluster", "h9000", r"no cluster is named 'h9000'[^$]*known: "),
        ("packer", "--packer", "dynamic", r"no packer is named 'dynamic'[^$]*packing_only"),
        ("--set key", "--set", "hiden=3", r"no model or cluster has a field 'hiden'[^$]*mean hidden"),
        ("--set without value", "--set", "hidden", r"--set 'hidden' has no value"),
        ("--set value", "--set", "hidden=big", r"hidden is 'big'"),
        ("--set range", "--set", "ring_overlap=2", r"ring_overlap is 2"),
        ("an unknown option", "--max-tokens", 5, r"--max-tokens[^$]*mean --max-tokens-per-rank"),
]:
    refused(what, 2, pattern, *plan(), option, value)
refused("a job that nobody could simulate", 1, r"4096 stages are too many", *plan(), "--ranks",
        1 << 20, "--pp", 4096)
refused("M that nobody could simulate", 1, r"2147483647 micro-batches", *plan(),
        "--micro-batches", 2147483647)
refused("no command", 2, r"subcommand")
refused("an unknown command", 2, r"plann", "plann")
refused("no lengths", 2, r"--lengths", "plan", "--ranks", 4, "--max-tokens-per-rank", 10)
refused("no ranks", 2, r"--ranks", "plan", "--lengths", good, "--max-tokens-per-rank", 10)
refused("an option without its value", 2, r"--ranks", "plan", "--lengths", good, "--ranks")
refused("a file that cannot be written", 2, r"cannot write 'no/where\.json'",
        *plan(), "--out", "no/where.json")
refused("min-length over max-length", 2, r"min-length 9 and max-length 3", *plan(),
        "--min-length", 9, "--max-length", 3)
refused("an error as JSON too", 2, r"ranks is 0", *plan(), "--ranks", 0, "--json")
for content, pattern in [
        ("{", r"model\.json line 1 column 2: not JSON"),
        ("[]", r"model\.json: the document is not an object"),
        ('{"layers": 4}', r"lacks the key 'hidden'"),
        ('{"layers": "x"}', r"layers is a string"),
        ('{"depth": 4}', r"depth is no field"),
]:
    code, _, err = t.run(*plan(), "--model", t.write("model.json", content))
    t.check(code in (1, 2) and re.search(pattern, err), f"model file {content}: {code} {err}")

# Plans
PLAN = {"num_ranks": 4, "max_tokens_per_rank": 100, "seqlens": [150, 60, 70], "micro_batches": [
    {"groups": [{"start": 0, "size": 2, "samples": [0]}, {"start": 2, "size": 1, "samples": [1]},
                {"start": 3, "size": 1, "samples": [2]}]}]}
code, _, err = t.run("check", t.write("plan.json", PLAN))
t.check(code == 0, f"the good plan is refused: {err}")


def plan_file(what, status, pattern, change, *more):
    content = change
    if callable(change):
        content = copy.deepcopy(PLAN)
        change(content)
    refused(what, status, pattern, "check", t.write("plan.json", content), *more)


def group(i, key, value):
    def change(p):
        p["micro_batches"][0]["groups"][i][key] = value
    return change


def key(name, value):
    def change(p):
        p[name] = value
    return change


plan_file("an empty plan file", 1, r"plan\.json line 1 column 1: not JSON", "")
plan_file("malformed JSON", 1, r"not JSON", '{"num_ranks": 4,')
plan_file("a file of lengths", 1, r"plan\.json", "100\n200\n")
plan_file("bytes", 1, r"not JSON", b"\x00\x01\xff")
plan_file("no object", 1, r"the document is an array", "[]")
for name in PLAN:
    plan_file(f"no {name}", 1, rf"lacks the key '{name}'",
              {k: v for k, v in PLAN.items() if k != name})
    plan_file(f"{name} null", 1, rf"{name} is null", {**PLAN, name: None})
plan_file("another format", 1, r"format is 'dyncp-plan-9'", key("format", "dyncp-plan-9"))
plan_file("no ranks", 2, r"num_ranks is 0", key("num_ranks", 0))
plan_file("limit 0", 2, r"max_tokens_per_rank is 0", key("max_tokens_per_rank", 0))
plan_file("no lengths", 1, r"seqlens is empty", key("seqlens", []))
plan_file("a length of 0", 1, r"seqlens\[1\] is 0", key("seqlens", [150, 0, 70]))
plan_file("a missing sample", 1, r"missing_sample: sequence 2", group(2, "samples", [1]))
plan_file("a doubled sample", 1, r"duplicate_sample: .*sequence 1 a second time",
          group(2, "samples", [2, 1]), "--max-cp", 4)
plan_file("an unknown sample", 1, r"unknown_sample: .*sequence 3 ", group(2, "samples", [2, 3]))
plan_file("a negative sample", 1, r"unknown_sample: .*sequence -1 ", group(2, "samples", [2, -1]))
plan_file("a huge sample", 2, r"samples\[0\] is 99999999999", group(2, "samples", [99999999999]))
plan_file("an overlapping group", 1, r"rank_overlap: .*shares rank 2", group(2, "start", 2))
plan_file("an unaligned group", 1, r"unaligned: .*starts at rank 1", lambda p: p.update(
    micro_batches=[{"groups": [{"start": 1, "size": 2, "samples": [0]},
                               {"start": 0, "size": 1, "samples": [1]},
                               {"start": 3, "size": 1, "samples": [2]}]}]))
plan_file("a group of 3", 1, r"not_power_of_two: .*3 ranks", lambda p: p.update(
    micro_batches=[{"groups": [{"start": 0, "size": 3, "samples": [0, 1, 2]}]}]))
plan_file("a group outside", 1, r"rank_out_of_range: .*ranks 4 \.\. 4 of 4", group(2, "start", 4))
plan_file("a group far outside", 1, r"rank_out_of_range", group(2, "start", 2147483647))
plan_file("a group of 0 ranks", 2, r"groups\[2\]\.size is 0", group(2, "size", 0))
plan_file("a group without samples", 1, r"empty_pack", group(2, "samples", []))
plan_file("over the limit", 1, r"over_limit: .*130 padded tokens", group(2, "samples", [1, 2]))
plan_file("over a smaller max-cp", 1, r"size_not_allowed", lambda p: None, "--max-cp", 1)
plan_file("too many ranks and micro-batches", 1, r"too many to simulate", lambda p: p.update(
    num_ranks=1 << 20, micro_batches=[{"groups": []}] * 100000))
plan_file("times over the range", 1, r"overflow", key("seqlens", [150, 60, 70]),
          "--set", "fixed_s=1000", "--pp", 4096, "--set", "launch_s=1000")
refused("no such plan", 2, r"cannot open 'no\.json'", "check", "no.json")
refused("an unknown preset", 2, r"no model or cluster is named 'x'", "presets", "x")

# Output that cannot be written is no success.
if os.path.exists("/dev/full"):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([TOOL, "presets"], stdout=full, stderr=subprocess.PIPE, timeout=60,
                              check=False)
    t.check(done.returncode != 0 and b"write" in done.stderr, f"a full disk: {done}")
t.finish()
