// SPDX-License-Identifier: Apache-2.0
#include <dyncp/problem/presets.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>

TEST_CASE("names of presets are unique and lead back to them") {
  std::set<std::string> names;
  for (const dyncp::model_spec& m : dyncp::model_presets()) {
    CHECK(names.insert(m.name).second);
    const auto found = dyncp::find_model(m.name);
    REQUIRE(found);
    CHECK(*found == m);
  }
  names.clear();
  for (const dyncp::cluster_spec& c : dyncp::cluster_presets()) {
    CHECK(names.insert(c.name).second);
    const auto found = dyncp::find_cluster(c.name);
    REQUIRE(found);
    CHECK(*found == c);
  }
}

TEST_CASE("an unknown name is repeated, with the names that exist") {
  const auto model = dyncp::find_model("reference-14b");
  REQUIRE_FALSE(model);
  CHECK(model.error().code == dyncp::errc::unknown_name);
  CHECK(model.error().what.find("'reference-14b'") != std::string::npos);
  CHECK(model.error().hint.find("reference-13b") != std::string::npos);
  CHECK_FALSE(dyncp::find_cluster(""));
}

TEST_CASE("weights of a layer, by hand") {
  // Llama-13B: 4*5120^2 + 3*5120*13824 = 317,194,240; 634.4 MFLOP a token.
  const dyncp::model_spec llama = *dyncp::find_model("reference-13b");
  CHECK(dyncp::active_parameters_per_layer(llama) == 317194240.0);
  CHECK(dyncp::parameters_per_layer(llama) == 317194240.0);
  CHECK(dyncp::attention_flops_per_square(llama) == 10240.0);

  // GQA with a plain MLP: 64*(64 + 2*16) + 64*64 + 2*64*256 = 43,008.
  dyncp::model_spec m;
  m.hidden = 64;
  m.query_hidden = 64;
  m.kv_hidden = 16;
  m.ffn = 256;
  m.gated_mlp = false;
  CHECK(dyncp::active_parameters_per_layer(m) == 43008.0);
  // 8 experts of which a token uses 2: attention 10,240 + router 512 + 2 (or 8) * 32,768.
  m.experts = 8;
  m.experts_per_token = 2;
  CHECK(dyncp::active_parameters_per_layer(m) == 76288.0);
  CHECK(dyncp::parameters_per_layer(m) == 272896.0);
  m.mask = dyncp::attention_mask::full;
  CHECK(dyncp::attention_flops_per_square(m) == 256.0);
}
