// SPDX-License-Identifier: Apache-2.0
// The attention kernels with each CUDA thread a thread of its own for the thread sanitizer: no
// shared or global memory is read or written without a barrier, a wait or a turn in between.
#include "emulation/attention_case.hpp"
#include "emulation/world.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;
using dyncp_emulation::world;

namespace {

void run_apart(std::int32_t dim, attention_mask mask,
               const std::vector<attention_segment>& segments, bool deterministic) {
  world w({.seed = 3, .grid = {.live_blocks = 2, .thread_identities = true}});
  attention_case<bfloat16> c({2, 1, dim, dim, default_scale(dim)}, mask, segments, 1);
  cuda_kernel kernel({.deterministic = deterministic});
  c.run(kernel);
  check_rule(c);
  CHECK_MESSAGE(w.first_fault().text.empty(), w.first_fault().text);
}

}  // namespace

TEST_CASE("causal, several tiles of queries and keys, additions to dq in turn") {
  run_apart(64, attention_mask::causal, {{0, 200, 0, 200}}, true);
}
TEST_CASE("full, two blocks add to the same tiles of dq, in turn and atomically") {
  run_apart(64, attention_mask::full, {{0, 70, 0, 140}, {70, 3, 140, 2}}, true);
  run_apart(64, attention_mask::full, {{0, 70, 0, 140}, {70, 3, 140, 2}}, false);
}
TEST_CASE("head size 128") {
  run_apart(128, attention_mask::causal, {{0, 130, 0, 130}}, true);
}
