// SPDX-License-Identifier: Apache-2.0
#include "emulation/sanitizers.hpp"

#include <cstdint>

namespace {
std::int64_t reports = 0;
}

// Called by the runtime of the thread sanitizer in the middle of a report. Nothing in this file is
// instrumented: a report while one is made would never return.
extern "C" void __tsan_on_report(void*);
extern "C" void __tsan_on_report(void*) { ++reports; }

namespace dyncp_emulation {
std::int64_t race_reports() { return reports; }
}  // namespace dyncp_emulation
