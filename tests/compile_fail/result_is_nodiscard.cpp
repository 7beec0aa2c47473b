// SPDX-License-Identifier: Apache-2.0
// An error that nobody looks at is a bug of the caller.
// expect: unused-result|nodiscard
#include <dyncp/core/result.hpp>

dyncp::result<int> plan();

void caller() {
#ifdef MUST_FAIL
  plan();
#else
  (void)plan();
#endif
}
