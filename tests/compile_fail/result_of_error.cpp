// SPDX-License-Identifier: Apache-2.0
// A result<error> could not tell its value from its error.
// expect: static.assert
#include <dyncp/core/result.hpp>

#ifdef MUST_FAIL
using held = dyncp::error;
#else
using held = int;
#endif

bool ask(const dyncp::result<held>& r) { return r.has_value(); }
