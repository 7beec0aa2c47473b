// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/spec_fields.hpp>
#include <dyncp/problem/presets.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>

namespace {

struct specs {
  dyncp::model_spec model = *dyncp::find_model("reference-13b");
  dyncp::cluster_spec cluster = *dyncp::find_cluster("reference-13b");
};

}  // namespace

TEST_CASE("no two fields of model and cluster share a name") {
  std::set<std::string> names;
  for (const std::string& n : dyncp::field_names<dyncp::model_spec>()) CHECK(names.insert(n).second);
  for (const std::string& n : dyncp::field_names<dyncp::cluster_spec>()) {
    CHECK(names.insert(n).second);
  }
}

TEST_CASE("every field of every preset lies in its bounds and survives being set from its text") {
  const auto check_all = [](const auto& preset) {
    CAPTURE(preset.name);
    auto copy = preset;
    dyncp::visit_fields(preset, [&](const dyncp::field_info& field, const auto& member) {
      CAPTURE(field.name);
      using member_type = std::remove_cvref_t<decltype(member)>;
      std::string word;
      if constexpr (std::is_enum_v<member_type>) {
        word = std::string(to_string(member));
      } else {
        word = dyncp::text::shortest(static_cast<double>(member));
      }
      const auto found = dyncp::set_field(copy, field.name, word);
      REQUIRE(found);
      CHECK(*found);
    });
    CHECK(copy == preset);
  };
  for (const auto& m : dyncp::model_presets()) check_all(m);
  for (const auto& c : dyncp::cluster_presets()) check_all(c);
}

TEST_CASE("--set changes the field it names, in whichever spec has it") {
  specs s;
  REQUIRE(dyncp::set_field(s.model, s.cluster, "layers=48"));
  REQUIRE(dyncp::set_field(s.model, s.cluster, "mask=full"));
  REQUIRE(dyncp::set_field(s.model, s.cluster, "gated_mlp=false"));
  REQUIRE(dyncp::set_field(s.model, s.cluster, "nvlink_bytes_per_s=150e9"));
  CHECK(s.model.layers == 48);
  CHECK(s.model.mask == dyncp::attention_mask::full);
  CHECK_FALSE(s.model.gated_mlp);
  CHECK(s.cluster.nvlink_bytes_per_s == 150e9);
}

TEST_CASE("bad assignments are errors that name key, value and what is allowed") {
  specs s;
  const auto failure = [&](const char* assignment) {
    const auto outcome = dyncp::set_field(s.model, s.cluster, assignment);
    REQUIRE_FALSE(outcome);
    return outcome.error();
  };
  const dyncp::error unknown = failure("nvlink_bytes_per=1");
  CHECK(unknown.code == dyncp::errc::unknown_name);
  CHECK(unknown.what == "no model or cluster has a field 'nvlink_bytes_per'");
  CHECK(unknown.hint.find("did you mean nvlink_bytes_per_s?") == 0);
  CHECK(unknown.hint.find("known: layers, hidden,") != std::string::npos);
  CHECK(failure("name=x").code == dyncp::errc::unknown_name);
  CHECK(failure("layers").what == "--set 'layers' has no value");
  CHECK(failure("layers=").what == "layers is ''");
  CHECK(failure("layers=4.5").what == "layers is '4.5'");
  CHECK(failure("layers=0").hint == "use 1 .. 1048576 (layers of the model)");
  CHECK(failure("layers=99999999999999999999").what == "layers is 99999999999999999999");
  CHECK(failure("mask=banana").hint == "use causal, full (causal or full)");
  CHECK(failure("gated_mlp=2").what == "gated_mlp is '2'");
  CHECK(failure("linear_flops_per_s=0").what == "linear_flops_per_s is 0");
  CHECK(failure("linear_flops_per_s=inf").what == "linear_flops_per_s is 'inf'");
  CHECK(failure("ring_overlap=1.5").what == "ring_overlap is 1.5");
  CHECK(s.model == specs{}.model);
  CHECK(s.cluster == specs{}.cluster);
}

TEST_CASE("experts are counted together") {
  dyncp::model_spec m = *dyncp::find_model("reference-13b");
  CHECK(dyncp::check_fields(m));
  m.experts_per_token = 2;
  CHECK_FALSE(dyncp::check_fields(m));
  m.experts = 8;
  CHECK(dyncp::check_fields(m));
  m.experts_per_token = 0;
  CHECK_FALSE(dyncp::check_fields(m));
}
