// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/json.hpp>

#include "support/random.hpp"

#include <dyncp/problem/presets.hpp>

#include <doctest/doctest.h>

#include <string>

namespace {

const std::string small =
    R"({"format":"dyncp-plan-1","num_ranks":2,"max_tokens_per_rank":100,"seqlens":[50,60],)"
    R"("micro_batches":[{"groups":[{"start":0,"size":1,"samples":[0]},)"
    R"({"start":1,"size":1,"samples":[1]}]}]})";

// `small` with the first occurrence of `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = small;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

dyncp::error error_of(const std::string& text) {
  const auto plan = dyncp::parse_plan(text, "p.json");
  REQUIRE_FALSE(plan);
  return plan.error();
}

dyncp::plan_document full_document() {
  dyncp::plan_document d;
  d.plan.num_ranks = 6;
  d.plan.max_tokens_per_rank = 128;
  d.plan.padding = {true, 2, 3, 16};
  d.plan.micro_batches.push_back({{{{0, 4}, {1}}, {{4, 2}, {0, 2}}}});
  d.plan.micro_batches.emplace_back();
  d.seqlens = {50, 200, 7};
  d.source_lines = {3, 5, 8};
  d.atoms = {-1, 4, 4};
  d.packer = "dynamic_cp";
  d.parallel = dyncp::parallel_spec{6, 4, 2, 2, 2, 2, 4, {2, 4}};
  d.limits = dyncp::plan_limits{128, 4096, 9, 2, 2, true, true};
  d.model = *dyncp::find_model("reference-13b");
  d.cluster = *dyncp::find_cluster("reference-13b");
  return d;
}

}  // namespace

TEST_CASE("a plan needs four keys, and its format only if it states one") {
  const auto d = dyncp::parse_plan(small, "p.json");
  REQUIRE(d);
  CHECK(d->plan.num_ranks == 2);
  CHECK(d->plan.max_tokens_per_rank == 100);
  CHECK(d->plan.padding == dyncp::padding_rule{});
  CHECK(d->seqlens == std::vector<std::int64_t>{50, 60});
  REQUIRE(d->plan.num_micro_batches() == 1);
  CHECK(d->plan.micro_batches[0].packs[1] == dyncp::pack{{1, 1}, {1}});
  CHECK(dyncp::parse_plan(changed(R"("format":"dyncp-plan-1",)", ""), "p.json"));
  CHECK(dyncp::parse_plan(changed("{", R"({"unknown":[{"a":null}],)"), "p.json"));
}

TEST_CASE("what is written is read back, and written the same again") {
  const dyncp::plan_document d = full_document();
  const std::string text = dyncp::to_json(d);
  const auto back = dyncp::parse_plan(text, "p.json");
  REQUIRE(back);
  CHECK(back->plan == d.plan);
  CHECK(back->seqlens == d.seqlens);
  CHECK(back->source_lines == d.source_lines);
  CHECK(back->atoms == d.atoms);
  CHECK(back->packer == d.packer);
  CHECK(*back->parallel == *d.parallel);
  CHECK(*back->limits == *d.limits);
  CHECK(*back->model == *d.model);
  CHECK(*back->cluster == *d.cluster);
  CHECK(dyncp::to_json(*back) == text);
}

TEST_CASE("padding modes") {
  const auto pad = [](const std::string& value) {
    const auto d = dyncp::parse_plan(changed(R"("seqlens")", R"("pad":)" + value + R"(,"seqlens")"),
                                     "p.json");
    REQUIRE(d);
    return d->plan.padding;
  };
  CHECK(pad(R"({"mode":"none"})") == dyncp::padding_rule{});
  CHECK(pad(R"({"mode":"zigzag"})") == dyncp::padding_rule{true, 1, 1, 1});
  CHECK(pad(R"({"mode":"multiple","value":512})") == dyncp::padding_rule{false, 1, 512, 1});
  CHECK(pad(R"({"mode":"zigzag","multiple":3,"sequence_parallel":2,"shard_multiple":32})") ==
        dyncp::padding_rule{true, 2, 3, 32});
  for (const dyncp::padding_rule rule :
       {dyncp::padding_rule{}, dyncp::padding_rule{true, 1, 1, 1},
        dyncp::padding_rule{false, 4, 1, 1}, dyncp::padding_rule{false, 4, 6, 8}}) {
    dyncp::plan_document d = full_document();
    d.plan.padding = rule;
    CHECK(dyncp::parse_plan(dyncp::to_json(d), "p.json")->plan.padding == rule);
  }
}

TEST_CASE("errors name the path in the file") {
  const auto expect = [](const std::string& text, dyncp::errc code, const std::string& what) {
    const dyncp::error e = error_of(text);
    CHECK(e.code == code);
    CHECK(e.what == what);
  };
  using dyncp::errc;
  expect("", errc::parse_error, "p.json line 1 column 1: not JSON");
  CHECK(error_of("").hint == "the file is empty");
  CHECK(error_of("{\"num_ranks\": 2,\n  \"x\": }").what.find("p.json line 2 column 8: not JSON") == 0);
  CHECK(error_of(small.substr(0, small.size() - 1)).code == errc::parse_error);
  CHECK(error_of(small + "x").code == errc::parse_error);
  expect("[1]", errc::parse_error, "p.json: the document is an array, not an object");
  expect("null", errc::parse_error, "p.json: the document is null, not an object");
  expect("{}", errc::parse_error, "p.json: the document lacks the key 'num_ranks'");
  expect(changed("dyncp-plan-1", "other"), errc::parse_error, "p.json: format is 'other'");
  expect(changed("\"num_ranks\":2", "\"num_ranks\":0"), errc::invalid_argument,
         "p.json: num_ranks is 0, not in 1 .. 1048576");
  expect(changed("\"num_ranks\":2", "\"num_ranks\":\"2\""), errc::parse_error,
         "p.json: num_ranks is a string, not a whole number");
  expect(changed("\"num_ranks\":2", "\"num_ranks\":2.5"), errc::parse_error,
         "p.json: num_ranks is 2.5, not a whole number of 64 bits");
  expect(changed("\"num_ranks\":2", "\"num_ranks\":18446744073709551615"), errc::invalid_argument,
         "p.json: num_ranks is 18446744073709551615, not in 1 .. 1048576");
  CHECK(error_of(changed("\"num_ranks\":2", "\"num_ranks\":99999999999999999999")).code ==
        errc::parse_error);
  expect(changed("100", "0"), errc::invalid_argument,
         "p.json: max_tokens_per_rank is 0, not in 1 .. 1099511627776");
  expect(changed("[50,60]", "[50,0]"), errc::invalid_length,
         "p.json: seqlens[1] is 0, not in 1 .. 1099511627776");
  expect(changed("[50,60]", "[50,-60]"), errc::invalid_length,
         "p.json: seqlens[1] is -60, not in 1 .. 1099511627776");
  expect(changed("[50,60]", "{}"), errc::parse_error, "p.json: seqlens is an object, not an array");
  expect(changed("\"samples\":[1]", "\"samples\":[null]"), errc::parse_error,
         "p.json: micro_batches[0].groups[1].samples[0] is null, not a whole number");
  expect(changed("\"start\":1,", ""), errc::parse_error,
         "p.json: micro_batches[0].groups[1] lacks the key 'start'");
  expect(changed("\"start\":1,", "\"start\":-1,"), errc::invalid_argument,
         "p.json: micro_batches[0].groups[1].start is -1, not in 0 .. 2147483647");
  expect(changed("\"size\":1", "\"size\":0"), errc::invalid_argument,
         "p.json: micro_batches[0].groups[0].size is 0, not in 1 .. 2147483647");
  expect(changed("{\"groups\"", "{\"group\""), errc::parse_error,
         "p.json: micro_batches[0] lacks the key 'groups'");
  expect(changed("\"seqlens\"", "\"pad\":{\"mode\":\"zig\"},\"seqlens\""), errc::unknown_name,
         "p.json: pad.mode is 'zig'");
  expect(changed("\"seqlens\"", "\"pad\":{\"mode\":\"multiple\"},\"seqlens\""), errc::parse_error,
         "p.json: pad lacks the key 'value'");
  expect(changed("\"seqlens\"", "\"source_lines\":[1],\"seqlens\""), errc::parse_error,
         "p.json: source_lines has 1 items for 2 seqlens");
}

TEST_CASE("deep nesting does no harm, a key that stands twice is named") {
  std::string deep = "{\"x\":";
  for (int i = 0; i < 200000; ++i) deep += '[';
  CHECK_FALSE(dyncp::parse_plan(deep, "p.json"));
  for (int i = 0; i < 200000; ++i) deep += ']';
  CHECK_FALSE(dyncp::parse_plan(deep + "}", "p.json"));
  const dyncp::error twice = error_of(changed("{", "{\"num_ranks\":7,"));
  CHECK(twice.code == dyncp::errc::parse_error);
  CHECK(twice.what == "p.json: an object has the key 'num_ranks' twice");
  // In different objects a key may stand as often as there are objects, as "start" does.
  CHECK(dyncp::parse_plan(small, "p.json"));
}

TEST_CASE("sections that are no objects are named, not passed over") {
  for (const char* section : {"limits", "parallel", "model", "cluster", "pad"}) {
    for (const char* value : {"5", "[]", "\"none\"", "null"}) {
      CAPTURE(section);
      CAPTURE(value);
      const dyncp::error e =
          error_of(changed("\"seqlens\"", "\"" + std::string(section) + "\":" + value + ",\"seqlens\""));
      CHECK(e.code == dyncp::errc::parse_error);
      CHECK(e.what.find(section) != std::string::npos);
    }
  }
}

TEST_CASE("specs are read by the names of their fields") {
  const auto model = dyncp::parse_spec<dyncp::model_spec>(
      R"({"name":"m","layers":4,"hidden":64,"ffn":128,"query_hidden":64,"kv_hidden":16,)"
      R"("mask":"full","recompute":"none","gated_mlp":false})",
      "m.json");
  REQUIRE(model);
  CHECK(model->name == "m");
  CHECK(model->kv_hidden == 16);
  CHECK(model->mask == dyncp::attention_mask::full);
  CHECK_FALSE(model->gated_mlp);
  CHECK(model->dtype_bytes == 2);

  for (const auto& preset : dyncp::model_presets()) {
    CHECK(*dyncp::parse_spec<dyncp::model_spec>(dyncp::to_json(preset), "m") == preset);
  }
  for (const auto& preset : dyncp::cluster_presets()) {
    CHECK(*dyncp::parse_spec<dyncp::cluster_spec>(dyncp::to_json(preset), "c") == preset);
  }

  const auto fails = [](const char* text) {
    const auto spec = dyncp::parse_spec<dyncp::model_spec>(text, "m.json");
    REQUIRE_FALSE(spec);
    return spec.error();
  };
  CHECK(fails("{}").what == "m.json: the document lacks the key 'layers'");
  CHECK(fails(R"({"layer":4})").what == "m.json: layer is no field");
  CHECK(fails(R"({"layer":4})").hint.find("did you mean layers?") == 0);
  CHECK(fails(R"({"layers":-4})").what == "m.json: layers is -4");
  CHECK(fails(R"({"layers":"4"})").code == dyncp::errc::parse_error);
  CHECK(fails(R"({"layers":4.5})").what == "m.json: layers is '4.5'");
  CHECK(fails(R"({"layers":[4]})").code == dyncp::errc::parse_error);
  CHECK(fails(R"({"mask":"half"})").what == "m.json: mask is 'half'");
  CHECK(fails("[]").code == dyncp::errc::parse_error);
}

TEST_CASE("JSON lines give lengths by length, input_ids or tokens") {
  const auto list = dyncp::parse_json_lines(
      "{\"length\":5,\"tokens\":[1]}\r\n\n{\"input_ids\":[1,2,3]}\n{\"tokens\":7,\"text\":\"x\"}\n"
      "{\"tokens\":[]}",
      "f.jsonl");
  REQUIRE(list);
  CHECK(list->lengths == std::vector<std::int64_t>{5, 3, 7, 0});
  CHECK(list->lines == std::vector<std::int64_t>{1, 3, 4, 5});
  CHECK(list->atoms.empty());
  const auto pairs = dyncp::parse_json_lines(
      "{\"length\":5,\"group\":1}\n{\"length\":6}\n{\"length\":7,\"group\":1}", "f.jsonl");
  REQUIRE(pairs);
  CHECK(pairs->atoms == std::vector<std::int64_t>{1, -1, 1});

  const auto what = [](const char* text) {
    const auto bad = dyncp::parse_json_lines(text, "f");
    REQUIRE_FALSE(bad);
    return bad.error().what;
  };
  CHECK(what("") == "f holds no length");
  CHECK(what("{\"length\":1}\n{\"length\":}") == "f line 2: '{\"length\":}' is not JSON");
  CHECK(what("{\"length\":-1}") == "f line 1: length is -1, not in 0 .. 1099511627776");
  CHECK(what("{\"length\":1.5}") == "f line 1: length is 1.5, not a whole number of 64 bits");
  CHECK(what("{\"input_ids\":\"1 2\"}") == "f line 1: input_ids is a string, not an array");
  CHECK(what("{\"text\":\"x\"}") ==
        "f line 1: the document has none of the keys length, input_ids and tokens");
  CHECK(what("7") == "f line 1: the document has none of the keys length, input_ids and tokens");
  CHECK(what("{\"length\":1,\"group\":-2}").find("group is -2") != std::string::npos);
}

TEST_CASE("damaged plans are errors, never crashes") {
  const std::uint64_t seed = dyncp_test::seed_or(20260802);
  INFO("seed " << seed);
  dyncp_test::random rng(seed);
  const std::string whole = dyncp::to_json(full_document());
  const std::string pieces[] = {"{", "}", "[", "]", ",", ":", "\"", "-", "9", "1e9", "null", "\\u"};
  for (std::int64_t round = dyncp_test::count_or(4000); round > 0; --round) {
    std::string text = whole;
    for (std::int64_t n = rng.between(1, 3); n > 0; --n) {
      const auto at = static_cast<std::size_t>(
          rng.between(0, static_cast<std::int64_t>(text.size()) - 1));
      switch (rng.between(0, 3)) {
        case 0: text.erase(at, static_cast<std::size_t>(rng.between(1, 20))); break;
        case 1: text.insert(at, pieces[rng.between(0, 11)]); break;
        case 2: text[at] = static_cast<char>(rng.between(0, 255)); break;
        default: text.resize(at + 1);
      }
    }
    const auto d = dyncp::parse_plan(text, "p.json");
    if (!d) CHECK_FALSE(d.error().what.empty());
  }
}
