// SPDX-License-Identifier: Apache-2.0
#pragma once

// The library's version; meson.build holds the same numbers and a test compares the two.
#define DYNCP_VERSION_MAJOR 0
#define DYNCP_VERSION_MINOR 1
#define DYNCP_VERSION_PATCH 0

// True when the headers are of version a.b.c or newer, in the sense of semantic versioning.
#define DYNCP_VERSION_AT_LEAST(a, b, c)                                      \
  (DYNCP_VERSION_MAJOR > (a) ||                                              \
   (DYNCP_VERSION_MAJOR == (a) &&                                            \
    (DYNCP_VERSION_MINOR > (b) ||                                            \
     (DYNCP_VERSION_MINOR == (b) && DYNCP_VERSION_PATCH >= (c)))))
