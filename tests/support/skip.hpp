// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace dyncp_test {

/// Reports the whole program as skipped (exit status 77) unless a check fails. For what the machine
/// lacks, such as a GPU; the caller returns from its test case.
void skip(const std::string& reason);

}  // namespace dyncp_test
