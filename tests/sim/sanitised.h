/* Whether this program is built with a sanitiser, which makes everything some ten times slower: grids are
 * thinner then. */
#ifndef TN_TESTS_SANITISED_H
#define TN_TESTS_SANITISED_H

#include <stdbool.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITISED true
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITISED true
#endif
#ifndef SANITISED
#define SANITISED false
#endif

#endif
