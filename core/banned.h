/* Functions that do not compile here, and what to use instead. The Makefile includes this file in front of every source
 * of ours; nothing includes it by name.
 *
 * The headers that declare them come first, so that only a call of ours meets the macro. */
#ifndef TN_CORE_BANNED_H
#define TN_CORE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TNI_BANNED(name, instead) name##_is_banned_use_##instead

/* No bound on what is written. */
#undef strcpy
#define strcpy(...) TNI_BANNED(strcpy, snprintf_or_memcpy)
#undef strcat
#define strcat(...) TNI_BANNED(strcat, snprintf)
#undef sprintf
#define sprintf(...) TNI_BANNED(sprintf, snprintf)
#undef vsprintf
#define vsprintf(...) TNI_BANNED(vsprintf, vsnprintf)
#undef gets
#define gets(...) TNI_BANNED(gets, fgets)
#undef alloca
#define alloca(...) TNI_BANNED(alloca, malloc)

/* May leave the string open, or bound the wrong thing. */
#undef strncpy
#define strncpy(...) TNI_BANNED(strncpy, snprintf_or_memcpy)
#undef strncat
#define strncat(...) TNI_BANNED(strncat, snprintf)

/* Cannot report an error. */
#undef atoi
#define atoi(...) TNI_BANNED(atoi, strtol)
#undef atol
#define atol(...) TNI_BANNED(atol, strtol)
#undef atoll
#define atoll(...) TNI_BANNED(atoll, strtoll)
#undef atof
#define atof(...) TNI_BANNED(atof, strtod)

/* Hidden state shared by all threads. */
#undef strtok
#define strtok(...) TNI_BANNED(strtok, strchr)
#undef localtime
#define localtime(...) TNI_BANNED(localtime, gmtime_r)
#undef gmtime
#define gmtime(...) TNI_BANNED(gmtime, gmtime_r)
#undef ctime
#define ctime(...) TNI_BANNED(ctime, strftime)
#undef asctime
#define asctime(...) TNI_BANNED(asctime, strftime)

/* Not random enough, or not reproducible: randomness is passed in (core/random.h). */
#undef rand
#define rand(...) TNI_BANNED(rand, core_random_h)
#undef srand
#define srand(...) TNI_BANNED(srand, core_random_h)

/* A race between the name and the file. */
#undef tmpnam
#define tmpnam(...) TNI_BANNED(tmpnam, mkstemp)
#undef tempnam
#define tempnam(...) TNI_BANNED(tempnam, mkstemp)
#undef mktemp
#define mktemp(...) TNI_BANNED(mktemp, mkstemp)

/* Not banned, but silent under ThreadSanitizer: libnng's own calls of it must be suppressed there (tests/tsan.supp), which
 * would hide a mutex of ours that is destroyed while another thread still holds it. Without ours, the free() that follows
 * is reported instead. */
#if defined(__SANITIZE_THREAD__)
#include <pthread.h>
#define pthread_mutex_destroy(m) ((void)(m))
#endif

#endif
