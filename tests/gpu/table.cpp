// SPDX-License-Identifier: Apache-2.0
// Prints how fast the kernels are on the GPU of this machine, as a table in Markdown.
#include "gpu/table.hpp"

#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/library.hpp>

#include <cstdio>
#include <string>

int main() {
  constexpr int skipped = 77;
  auto gpu = dyncp::cuda::device::open({});
  if (!gpu) {
    std::printf("no GPU: %s\n", gpu.error().message().c_str());
    return gpu.error().code == dyncp::errc::unsupported ? skipped : 1;
  }
  dyncp_test::speed_table table(*gpu);
  const auto lines = table.run();
  if (!lines) {
    std::printf("failed: %s\n", lines.error().message().c_str());
    return 1;
  }
  const auto info = dyncp::cuda::loaded_library();
  std::printf("%s, %d processors; CUDA %d.%d; dyncp %d.%d.%d; head size 128, causal, bfloat16\n\n",
              gpu->name().c_str(), gpu->processors(), info.cuda_version / 1000,
              info.cuda_version % 1000 / 10, info.version_major, info.version_minor,
              info.version_patch);
  std::printf("| %-29s | %-42s | %8s | %-7s | %6s | %-7s |\n", "what", "of", "value", "unit",
              "goal", "reached");
  std::printf(
      "| ----------------------------- | ------------------------------------------ "
      "| -------- | ------- | ------ | ------- |\n");
  for (const auto& line : *lines) {
    const bool goal = line.goal > 0;
    char text[16] = "";
    if (goal) std::snprintf(text, sizeof text, "%.0f", line.goal);
    std::printf("| %-29s | %-42s | %8.*f | %-7s | %6s | %-7s |\n", line.what.c_str(),
                line.of.c_str(), line.unit == "us" ? 2 : 1, line.value, line.unit.c_str(), text,
                !goal                     ? ""
                : line.value >= line.goal ? "yes"
                                          : "no");
  }
  return 0;
}
