// SPDX-License-Identifier: Apache-2.0
#include <dyncp/dyncp.hpp>

namespace dyncp_test {
dyncp::result<int> from_two() { return 2; }
}  // namespace dyncp_test
