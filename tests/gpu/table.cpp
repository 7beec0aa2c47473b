// SPDX-License-Identifier: Apache-2.0
// Prints how fast the kernels are on the GPU of this machine, as a table in Markdown.
#include "gpu/self_exchange.hpp"
#include "gpu/table.hpp"

#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/abi.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/library.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <utility>

namespace {

/// What an exchange of one small message costs, its wait for NCCL included.
dyncp::result<dyncp_test::speed> exchange_speed(dyncp::cuda::device& gpu) {
  constexpr int exchanges = 500;
  constexpr std::int64_t bytes = 4096;
  auto stream = gpu.make_stream();
  if (!stream) return std::move(stream).error();
  auto memory = gpu.allocate(2 * bytes);
  if (!memory) return std::move(memory).error();
  auto* const to = static_cast<char*>(memory->data());
  dyncp_test::self_exchange self(gpu);
  DYNCP_TRY(self.open());
  std::int64_t begin = 0;
  for (int i = -20; i < exchanges; ++i) {  // the first ones connect
    if (i == 0) begin = dyncp::cuda::abi::clock_us();
    DYNCP_TRY(self.exchange(to, to + bytes, bytes, stream->get()));
  }
  const auto us = static_cast<double>(dyncp::cuda::abi::clock_us() - begin) / exchanges;
  for (;;) {
    const auto done = gpu.poll(stream->get());
    if (!done) return done.error();
    if (*done) break;
  }
  return dyncp_test::speed{"exchange, on the host", "a send and a receive of 4 KiB", us, "us"};
}

std::string today() {
  char text[16] = "";
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  if (gmtime_r(&now, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

/// As its maker calls it; the library has no need to know.
std::string card(const dyncp::cuda::device& gpu) {
  cudaDeviceProp properties = {};
  const bool known = cudaGetDeviceProperties(&properties, gpu.ordinal()) == cudaSuccess;
  return known ? std::string(properties.name) + " (" + gpu.name() + ")" : gpu.name();
}

}  // namespace

int main() {
  constexpr int skipped = 77;
  auto gpu = dyncp::cuda::device::open({});
  if (!gpu) {
    std::printf("no GPU: %s\n", gpu.error().message().c_str());
    return gpu.error().code == dyncp::errc::unsupported ? skipped : 1;
  }
  dyncp_test::speed_table table(*gpu);
  auto lines = table.run();
  if (!lines) {
    std::printf("failed: %s\n", lines.error().message().c_str());
    return 1;
  }
  const auto info = dyncp::cuda::loaded_library();
  if (info.nccl_version > 0) {
    auto exchange = exchange_speed(*gpu);
    if (exchange) {
      lines->push_back(std::move(*exchange));
    } else {
      std::printf("no exchange: %s\n", exchange.error().message().c_str());
    }
  }
  std::printf("%s: %s, %d processors; CUDA %d.%d; dyncp %d.%d.%d; head size 128, causal, "
              "bfloat16\n\n",
              today().c_str(), card(*gpu).c_str(), gpu->processors(), info.cuda_version / 1000,
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
