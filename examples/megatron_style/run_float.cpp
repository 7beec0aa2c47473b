// SPDX-License-Identifier: Apache-2.0
#include "run_threads.hpp"

namespace megatron_style {

template reference<float> make_reference<float>(const run_options&);
template run_result run_threads<float>(const run_options&, const reference<float>*);

}  // namespace megatron_style
