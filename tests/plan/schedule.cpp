// SPDX-License-Identifier: Apache-2.0
#include <dyncp/plan/schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using dyncp::operation;
using dyncp::pipeline;
using dyncp::stage_order;

namespace {

// "F0.1" is the forward of micro-batch 0 on chunk 1.
std::string spell(const std::vector<operation>& order) {
  std::string text;
  for (const operation op : order) {
    text += (text.empty() ? "" : " ") + std::string(op.backward ? "B" : "F") +
            std::to_string(op.micro_batch) +
            (op.chunk > 0 ? "." + std::to_string(op.chunk) : std::string());
  }
  return text;
}

}  // namespace

TEST_CASE("1F1B of 3 stages and 4 micro-batches, as it is drawn everywhere") {
  const pipeline pipe{3, 1};
  CHECK(spell(stage_order(pipe, 0, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3");
  CHECK(spell(stage_order(pipe, 1, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3");
  CHECK(spell(stage_order(pipe, 2, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST_CASE("fewer micro-batches than stages") {
  CHECK(spell(stage_order({4, 1}, 0, 2)) == "F0 F1 B0 B1");
  CHECK(spell(stage_order({4, 1}, 2, 2)) == "F0 F1 B0 B1");
  CHECK(spell(stage_order({4, 1}, 3, 2)) == "F0 B0 F1 B1");
  CHECK(spell(stage_order({4, 1}, 1, 1)) == "F0 B0");
}

TEST_CASE("interleaved 1F1B of 2 stages, 2 chunks and 4 micro-batches, after Megatron's schedule") {
  // Warm-up: 2*(p-s-1) + (V-1)*p = 4 and 2 forwards; micro-batches pass the chunks in pairs.
  CHECK(spell(stage_order({2, 2}, 0, 4)) ==
        "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3");
  CHECK(spell(stage_order({2, 2}, 1, 4)) ==
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3");
}

TEST_CASE("as many micro-batches as stages: all forwards first") {
  CHECK(spell(stage_order({2, 2}, 0, 2)) == "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1");
  CHECK(spell(stage_order({2, 2}, 1, 2)) == "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1");
}

TEST_CASE("each chunk of each micro-batch goes forward once, then backward once") {
  for (std::int32_t p = 1; p <= 5; ++p) {
    for (std::int32_t v = 1; v <= 3; ++v) {
      for (std::int32_t m = 0; m <= 12; ++m) {
        if (v > 1 && m % p != 0) continue;
        for (std::int32_t s = 0; s < p; ++s) {
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(m);
          CAPTURE(s);
          const auto order = stage_order({p, v}, s, m);
          REQUIRE(order.size() == static_cast<std::size_t>(2 * m * v));
          std::size_t forwards = 0;
          while (forwards < order.size() && !order[forwards].backward) ++forwards;
          // The first backward follows the warm-up and one forward more, where there is one.
          const auto warmup = static_cast<std::size_t>(dyncp::warmup_forwards({p, v}, s, m));
          CHECK(forwards == std::min(warmup + 1, order.size() / 2));
          for (std::int32_t j = 0; j < m; ++j) {
            for (std::int32_t c = 0; c < v; ++c) {
              const auto f = std::find(order.begin(), order.end(), operation{j, c, false});
              const auto b = std::find(order.begin(), order.end(), operation{j, c, true});
              REQUIRE(f < b);
              REQUIRE(b != order.end());
              if (c > 0) REQUIRE(std::find(order.begin(), f, operation{j, c - 1, false}) != f);
              if (c > 0)
                REQUIRE(std::find(b, order.end(), operation{j, c - 1, true}) != order.end());
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every stage runs the micro-batches of a chunk in one order (Megatron-LM#5100)") {
  for (const pipeline pipe : {pipeline{4, 1}, pipeline{4, 2}, pipeline{5, 3}}) {
    const std::int32_t m = pipe.chunks == 1 ? 5 : 2 * pipe.stages;
    for (std::int32_t c = 0; c < pipe.chunks; ++c) {
      for (const bool backward : {false, true}) {
        for (std::int32_t s = 0; s < pipe.stages; ++s) {
          std::int32_t next = 0;
          for (const operation op : stage_order(pipe, s, m)) {
            if (op.chunk == c && op.backward == backward) CHECK(op.micro_batch == next++);
          }
          CHECK(next == m);
        }
      }
    }
  }
}
