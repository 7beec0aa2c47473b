// SPDX-License-Identifier: Apache-2.0
// The example's model by itself: gradients against finite differences, partitions that begin alike.
#include "megatron_style/dense_run.hpp"
#include "megatron_style/model/parameters.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

using namespace megatron_style;

TEST_CASE("gradients of the dense model are those of finite differences") {
  const model_config config{.layers = 2,
                            .hidden = 12,
                            .ffn = 16,
                            .q_heads = 4,
                            .kv_heads = 2,
                            .head_dim = 4,
                            .vocabulary = 11};
  dense_run<double> dense(config);
  const std::vector<sample> batch = {{0, 9, 2}, {1, 5, 0}};
  dense.run(batch);
  const std::vector<double> gradients(dense.parameters().gradients().begin(),
                                      dense.parameters().gradients().end());
  constexpr double step = 1e-5;
  double worst = 0;
  for (std::size_t i = 0; i < gradients.size(); i += 3) {
    double& value = dense.parameters().values()[i];
    const double kept = value;
    value = kept + step;
    const double above = dense.run(batch);
    value = kept - step;
    const double below = dense.run(batch);
    value = kept;
    worst = std::max(worst, std::abs((above - below) / (2 * step) - gradients[i]));
  }
  CHECK(worst < 1e-7);
}

TEST_CASE("every partition of the model begins with the same weights") {
  const model_config config;
  parameter_set<double> whole(config, {});
  for (const model_part part : {model_part{1, 2, 2, 0, 1}, model_part{0, 2, 1, 1, 2}}) {
    parameter_set<double> mine(config, part);
    for (const parameter& p : mine.all()) {
      const auto same = std::find_if(whole.all().begin(), whole.all().end(),
                                     [&](const parameter& q) { return q.name == p.name; });
      REQUIRE(same != whole.all().end());
      const std::size_t row = static_cast<std::size_t>(p.row * same->cols + p.col);
      CHECK(mine.values()[p.offset] == whole.values()[same->offset + row]);
    }
  }
}
