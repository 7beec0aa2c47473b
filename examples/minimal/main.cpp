// SPDX-License-Identifier: Apache-2.0
#include <dyncp/dyncp.hpp>

#include <cstdio>

int main() {
  std::printf("dyncp %d.%d.%d\n", DYNCP_VERSION_MAJOR, DYNCP_VERSION_MINOR, DYNCP_VERSION_PATCH);
}
