/* Tells a process from its forks without a system call, which getpid() is.
 *
 * Thread safety: any thread. Ownership: none.
 *
 *   const uint64_t owner = gdn_process_mark();
 *   ...
 *   if (gdn_process_mark() != owner) return GDN_RING_FORKED;
 */
#ifndef GDN_RING_PROCESS_MARK_H_
#define GDN_RING_PROCESS_MARK_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a number that no fork of this process has, and no fork of a fork. Processes that are no forks of each other
 * may have equal marks. The first call must come before the fork. A child of _Fork() or of a bare clone() has its
 * parent's mark, because the C library tells nobody of such a child. */
uint64_t gdn_process_mark(void);

#ifdef __cplusplus
}
#endif

#endif /* GDN_RING_PROCESS_MARK_H_ */
