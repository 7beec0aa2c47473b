// SPDX-License-Identifier: Apache-2.0
// The trainer's schedules: they know nothing of the library, and run what its simulator assumes.
#include "megatron_style/schedule.hpp"

#include <dyncp/plan/schedule.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace {

/// Notes the operations that a schedule asks for; inputs and outputs are numbers that name them.
struct recorder {
  std::vector<dyncp::operation> done;

  std::int64_t forward(std::int32_t chunk, std::int32_t& micro_batch, std::int64_t input) {
    done.push_back({micro_batch, chunk, false});
    return input;
  }
  std::int64_t backward(std::int32_t chunk, std::int32_t& micro_batch, std::int64_t gradient) {
    done.push_back({micro_batch, chunk, true});
    return gradient;
  }
  std::int64_t receive_forward(std::int32_t) { return 0; }
  void send_forward(std::int32_t, std::int64_t) {}
  std::int64_t receive_backward(std::int32_t) { return 0; }
  void send_backward(std::int32_t, std::int64_t) {}
};

struct counter {
  std::int32_t at = 0;
  std::int32_t next() { return at++; }
};

}  // namespace

TEST_CASE("the schedule includes the standard library alone") {
  std::ifstream file(MEGATRON_STYLE_DIR "/schedule.hpp");
  REQUIRE(file);
  std::set<std::string> includes;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("#include", 0) == 0) includes.insert(line);
    CHECK_MESSAGE(line.find("dyncp") == std::string::npos, line);
  }
  CHECK(includes == std::set<std::string>{"#include <algorithm>", "#include <cstddef>",
                                          "#include <cstdint>", "#include <deque>",
                                          "#include <span>", "#include <utility>",
                                          "#include <vector>"});
}

TEST_CASE("both schedules run the operations in the order that the simulator takes them in") {
  for (std::int32_t stages = 1; stages <= 5; ++stages) {
    for (std::int32_t chunks = 1; chunks <= 3; ++chunks) {
      for (std::int32_t groups = 0; groups <= 4; ++groups) {
        for (std::int32_t more = 0; more < (chunks == 1 ? stages : 1); ++more) {
          const std::int32_t micro_batches = groups * stages + more;
          for (std::int32_t stage = 0; stage < stages; ++stage) {
            recorder model;
            std::vector<counter> iterators(static_cast<std::size_t>(chunks));
            const megatron_style::schedule_place place{stage, stages, chunks};
            if (chunks == 1) {
              megatron_style::forward_backward_1f1b(model, model, std::span(iterators), place,
                                                    micro_batches);
            } else {
              megatron_style::forward_backward_interleaved(model, model, std::span(iterators),
                                                           place, micro_batches);
            }
            CHECK(model.done == dyncp::stage_order({stages, chunks}, stage, micro_batches));
          }
        }
      }
    }
  }
}
