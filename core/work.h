/* An operation under way: what torch.distributed.Work wraps, and what a C caller waits on.
 *
 * PENDING -> RUNNING -> DONE, nothing else, and DONE exactly once. The provider starts and finishes it,
 * the consumer waits and may ask it to stop. Reference-counted; every function is thread-safe, and its
 * caller holds a reference for as long as the call lasts. A wait that times out leaves the operation
 * running (as c10d's does); whoever wants it gone calls tn_work_abort. */
#ifndef TN_CORE_WORK_H
#define TN_CORE_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"

typedef struct tn_work tn_work;
typedef void (*tn_work_fn)(void *arg, tn_work *w);
typedef void (*tn_cancel_fn)(void *arg, tn_code why); /* asks the provider to stop; must not block */

TN_API tn_work *tn_work_new(void); /* one reference; NULL when out of memory */
TN_API tn_work *tn_work_ref(tn_work *w);
TN_API void tn_work_unref(tn_work *w); /* NULL is fine */

/* Consumer. tn_work_wait: 0 looks, TN_FOREVER waits without limit; returns the operation's code and copies
 * its error, or TN_ETIMEDOUT when it is not done by then. It may return before the on_done callback has. */
TN_API tn_code tn_work_wait(tn_work *w, int64_t timeout_ns, tn_err *err);
TN_API bool tn_work_done(tn_work *w);
/* Not begun: DONE at once, with the code `why`. Running: calls the provider's cancel, the first time only;
 * how the work then ends is the provider's to say. Done: nothing. Never blocks. TN_OK as `why` means
 * TN_ECANCELED. */
TN_API void tn_work_abort(tn_work *w, tn_code why);
/* fn runs once, with no lock held, on the finishing thread, or at once on this one if already done. One
 * per work: a second registration is refused with false. */
TN_API bool tn_work_on_done(tn_work *w, tn_work_fn fn, void *arg);

/* Provider. start: false when it was aborted before it began (it is then already DONE). cancel (NULL: cannot be
 * stopped) is called with no lock held and may arrive just after finish: arg must stay valid as long as anyone
 * holds the work, or be looked up under the provider's own lock. finish: true for the first caller only; err is
 * copied and may be NULL for success; a work that never started may be finished too. */
TN_API bool tn_work_start(tn_work *w, tn_cancel_fn cancel, void *arg);
TN_API bool tn_work_finish(tn_work *w, const tn_err *err);

#endif
