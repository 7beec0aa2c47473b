// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any text is read as lengths, JSON lines and a histogram, or refused with an error.
#include <dyncp/io/json.hpp>
#include <dyncp/io/length_file.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto list = dyncp::parse_lengths(text, "fuzz");
  if (list) {
    dyncp::length_selection wanted;
    wanted.count = 100;
    if (const auto batch = dyncp::select_batch(*list, wanted)) {
      for (const dyncp::sequence& s : batch->sequences) {
        if (s.length < 1) std::abort();
      }
    }
  }
  (void)dyncp::parse_histogram(text, "fuzz").has_value();
  return 0;
}
