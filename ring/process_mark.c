#include "ring/process_mark.h"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int counts;     /* the C library took the handler */
static uint64_t forks; /* written in a fork while its only thread is in the handler */

static void note_fork(void) { ++forks; }

/* The C library forgets the handler when it unloads this code (dlclose). */
static void begin(void) { counts = pthread_atfork(NULL, NULL, note_fork) == 0; }

uint64_t gdn_process_mark(void) {
  pthread_once(&once, begin);
  return counts ? forks : (uint64_t)getpid();
}
