// SPDX-License-Identifier: Apache-2.0
// What a profiler sees of a library that was built with -Dnvtx=true: this program is the profiler.
#include "conformance/emulated_runner.hpp"
#include "emulation/attention_case.hpp"
#include "emulation/cuda_kernel.hpp"
#include "emulation/machine.hpp"

#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/message.hpp>

#include <doctest/doctest.h>

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

std::map<std::string, int> pushed;
int depth = 0;
int deepest = 0;
int popped = 0;

int NVTX_API push(const char* name) {
  ++pushed[name];
  deepest = ++depth > deepest ? depth : deepest;
  return depth - 1;
}
int NVTX_API pop() {
  ++popped;
  return --depth;
}

int NVTX_API listen(NvtxGetExportTableFunc_t table_of) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size) == 0 ||
      size <= NVTX_CBID_CORE_RangePop) {
    return 0;
  }
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

void start_profiler() {
  InitializeInjectionNvtx2_fnptr = &listen;  // asked for by the first range
  pushed.clear();
  depth = deepest = popped = 0;
}

}  // namespace

TEST_CASE("exchanges are ranges with names, closed as they were opened") {
  start_profiler();
  dyncp_test::emulated_runner<dyncp_test::local_kind> runner(2);
  using backend_type = decltype(runner)::backend_type;
  runner.run([](backend_type& backend) -> dyncp::result<void> {
    auto pool = dyncp::group_pool<backend_type>::create(backend, {.warm_up = false});
    if (!pool) return std::move(pool).error();
    auto memory = backend.device().allocate(8);
    if (!memory) return std::move(memory).error();
    const auto s = backend.device().comm_stream();
    DYNCP_TRY(backend.device().fill_zero(memory->data(), 8, s));
    for (int i = 0; i < 3; ++i) {
      const dyncp::outgoing out{1 - pool->rank(), memory->data(), 4};
      const dyncp::incoming in{1 - pool->rank(), static_cast<char*>(memory->data()) + 4, 4};
      DYNCP_TRY(pool->exchange(pool->everyone(), {&out, 1}, {&in, 1}, s));
    }
    return pool->synchronize(s);
  });
  CHECK(pushed["dyncp exchange"] == 6);  // three of each rank
  CHECK(popped == 6);
  CHECK(depth == 0);
  CHECK(deepest >= 1);
}

TEST_CASE("attention is a range each way") {
  const dyncp_test::machine machine;
  dyncp_test::attention_case<float> one({1, 1, 4, 4}, dyncp::attention_mask::causal,
                                        {{0, 2, 0, 2}}, 1);
  dyncp_test::cuda_kernel kernel;
  start_profiler();
  one.run(kernel);
  CHECK(pushed == std::map<std::string, int>{{"dyncp attention forward", 1},
                                             {"dyncp attention backward", 1}});
  CHECK(popped == 2);
  CHECK(deepest == 1);
}
