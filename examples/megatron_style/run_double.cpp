// SPDX-License-Identifier: Apache-2.0
#include "run_threads.hpp"

namespace megatron_style {

template reference<double> make_reference<double>(const run_options&);
template run_result run_threads<double>(const run_options&, const reference<double>*);

}  // namespace megatron_style
