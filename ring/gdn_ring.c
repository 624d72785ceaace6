#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* F_GET_SEALS */
#endif
#include "ring/gdn_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "ring/process_mark.h"

#define OPEN_US 2000000
#define NEVER INT64_MAX

#define LEAST_ROOM 64 /* bytes for a reply; a longer one comes in pieces */

enum state { kFree, kHeld, kInFlight, kAbandoned };

/* A call, and its block of the area: room for the message, whose end is where the tensors begin, the tensors, and room
 * for the reply. The server may write to the block until the call's completion has come. */
struct call {
  enum state state;
  int placed; /* held as a place: nobody knows for how long */
  uint64_t id;
  uint64_t offset, bytes; /* the block; no bytes: none */
  uint64_t tensors_offset, tensor_bytes[GDN_RING_TENSORS];
  uint64_t reply_offset, room;
  gdn_ring_completion completion;
  char* whole; /* a reply that did not fit its room */
};

struct gdn_ring {
  gdn_ring_header* header;
  gdn_ring_submission* submissions;
  gdn_ring_completion* completions;
  char* area;
  uint64_t bytes, area_bytes; /* checked copies of the header's */
  uint32_t entries;
  int server_wake, client_wake, peer; /* peer: the socket, which ends with the server's side */
  uint64_t owner;                     /* the mark of the process that opened the ring */
  uint32_t spin_us;

  pthread_mutex_t mutex; /* guards all below */
  pthread_cond_t changed;
  int looking; /* a thread looks for completions, and is the only one that does */
  int gone;
  uint32_t seen; /* completions that were taken */
  uint32_t spin_now;
  uint64_t calls_made;
  struct call* calls; /* `entries` */
};

static int64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* A fork shares the ring's memory with its parent, but not the mutex and the counts here: both would use the same entries
 * and the same blocks. So only the process that opened the ring may use it. */
static int is_fork(const gdn_ring* ring) { return gdn_process_mark() != ring->owner; }

/* ---- Opening */

static int fail(int error, const char* what, char* why, size_t why_bytes) {
  snprintf(why, why_bytes, "%s: %s", what, strerror(error));
  return error;
}

/* Closes what a message brought: a process that has too few free descriptors gets some of them. */
static void close_received(struct cmsghdr* head) {
  size_t at;
  int fd;
  if (head == NULL || head->cmsg_type != SCM_RIGHTS) return;
  for (at = 0; at + sizeof fd <= head->cmsg_len - CMSG_LEN(0); at += sizeof fd) {
    memcpy(&fd, CMSG_DATA(head) + at, sizeof fd);
    close(fd);
  }
}

/* Lets the socket's next call wait until `due`. */
static void limit_wait(int peer, int64_t due) {
  const int64_t left = due - now_us();
  struct timeval limit = {0, 1}; /* 0 would be without a limit */
  if (left > 0) {
    limit.tv_sec = left / 1000000;
    limit.tv_usec = left % 1000000;
  }
  setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* Sends the token and receives the descriptors. */
static int receive(int peer, const void* token, int64_t due, int fds[GDN_RING_FDS], char* why, size_t why_bytes) {
  char byte;
  char control[CMSG_SPACE(sizeof(int) * GDN_RING_FDS)];
  struct iovec data = {&byte, 1};
  struct msghdr message;
  struct cmsghdr* head;
  ssize_t got;
  limit_wait(peer, due);
  if (send(peer, token, GDN_RING_TOKEN_BYTES, MSG_NOSIGNAL) != GDN_RING_TOKEN_BYTES)
    return fail(errno, "cannot send the ring's token", why, why_bytes);
  memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  do {
    limit_wait(peer, due);
    got = recvmsg(peer, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return fail(errno, "the server sent no ring", why, why_bytes);
  head = CMSG_FIRSTHDR(&message);
  if (got == 0)
    return fail(EACCES, "the server does not know the ring's token; a token works once, for a few seconds", why,
                why_bytes);
  if (head == NULL || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(sizeof(int) * GDN_RING_FDS)) {
    close_received(head);
    return fail(EMFILE, "the ring's descriptors did not arrive; this process needs four free ones", why, why_bytes);
  }
  memcpy(fds, CMSG_DATA(head), sizeof(int) * GDN_RING_FDS);
  return 0;
}

/* Maps the memory and checks its header. */
static int map(gdn_ring* ring, int memory, char* why, size_t why_bytes) {
  struct stat found;
  gdn_ring_header head;
  void* mapped;
  int seals;
  if (fstat(memory, &found) != 0) return fail(errno, "cannot look at the ring's memory", why, why_bytes);
  seals = fcntl(memory, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || found.st_size < (off_t)sizeof head)
    return fail(EPROTO, "the ring's memory is not sealed", why, why_bytes);
  mapped = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) return fail(errno, "cannot map the ring's memory", why, why_bytes);
  ring->header = mapped;
  ring->bytes = (uint64_t)found.st_size;
  memcpy(&head, mapped, sizeof head);
  if (head.magic != GDN_RING_MAGIC || head.version != GDN_RING_VERSION || head.bytes != ring->bytes ||
      head.entries == 0 || head.entries > GDN_RING_MOST_ENTRIES || (head.entries & (head.entries - 1)) != 0 ||
      head.area_offset != gdn_ring_area_offset(head.entries) || head.area_offset > head.bytes ||
      head.area_bytes != head.bytes - head.area_offset)
    return fail(EPROTO, "the ring's memory has a form that this client does not know", why, why_bytes);
  ring->entries = head.entries;
  ring->area_bytes = head.area_bytes;
  ring->submissions = (void*)((char*)mapped + gdn_ring_submissions_offset());
  ring->completions = (void*)((char*)mapped + gdn_ring_completions_offset(head.entries));
  ring->area = (char*)mapped + head.area_offset;
  return 0;
}

static int open_ring(gdn_ring* ring, const char* socket_path, const void* token, int64_t due, char* why,
                     size_t why_bytes) {
  struct sockaddr_un address;
  int fds[GDN_RING_FDS], error;
  if (strlen(socket_path) >= sizeof address.sun_path) return fail(ENAMETOOLONG, "the ring's socket", why, why_bytes);
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, socket_path);
  ring->peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (ring->peer < 0) return fail(errno, "cannot make a socket", why, why_bytes);
  limit_wait(ring->peer, due);
  if (connect(ring->peer, (struct sockaddr*)&address, sizeof address) != 0)
    return fail(errno, "cannot connect to the ring's socket; is the server on another host, or in another container?",
                why, why_bytes);
  error = receive(ring->peer, token, due, fds, why, why_bytes);
  if (error != 0) return error;
  ring->server_wake = fds[1];
  ring->client_wake = fds[2];
  error = map(ring, fds[0], why, why_bytes);
  close(fds[0]);
  if (error != 0) return error;
  ring->calls = calloc(ring->entries, sizeof *ring->calls);
  return ring->calls == NULL ? fail(ENOMEM, "no memory", why, why_bytes) : 0;
}

int gdn_ring_open(const char* socket_path, const void* token, uint32_t spin_us, uint64_t timeout_us, gdn_ring** ring,
                  char* why, size_t why_bytes) {
  const int64_t due = now_us() + (int64_t)(timeout_us < OPEN_US ? timeout_us : OPEN_US);
  pthread_condattr_t monotonic;
  gdn_ring* made = calloc(1, sizeof *made);
  int error;
  *ring = NULL;
  if (made == NULL) return fail(ENOMEM, "no memory", why, why_bytes);
  made->server_wake = made->client_wake = made->peer = -1;
  made->owner = gdn_process_mark();
  made->spin_us = made->spin_now = spin_us;
  pthread_mutex_init(&made->mutex, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&made->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  error = open_ring(made, socket_path, token, due, why, why_bytes);
  if (error != 0) {
    gdn_ring_close(made);
    return error;
  }
  *ring = made;
  return 0;
}

void gdn_ring_close(gdn_ring* ring) {
  uint32_t i;
  if (ring == NULL) return;
  if (ring->header != NULL) munmap(ring->header, ring->bytes);
  if (ring->server_wake >= 0) close(ring->server_wake);
  if (ring->client_wake >= 0) close(ring->client_wake);
  if (ring->peer >= 0) close(ring->peer);
  for (i = 0; ring->calls != NULL && i < ring->entries; ++i) free(ring->calls[i].whole);
  free(ring->calls);
  if (!is_fork(ring)) { /* a thread of the parent may have waited here at the fork; its condition would be waited for */
    pthread_cond_destroy(&ring->changed);
    pthread_mutex_destroy(&ring->mutex);
  }
  free(ring);
}

/* ---- Waiting. All functions below are called with the mutex held. */

/* Waits until another thread has changed something, or `due`. */
static void wait_for_others(gdn_ring* ring, int64_t due) {
  struct timespec until;
  if (due == NEVER) {
    pthread_cond_wait(&ring->changed, &ring->mutex);
    return;
  }
  until.tv_sec = due / 1000000;
  until.tv_nsec = due % 1000000 * 1000;
  pthread_cond_timedwait(&ring->changed, &ring->mutex, &until);
}

static void free_call(gdn_ring* ring, struct call* call) {
  free(call->whole);
  memset(call, 0, sizeof *call);
  pthread_cond_broadcast(&ring->changed);
}

/* Takes the completions that have come. Returns their number. */
static uint32_t take_completions(gdn_ring* ring) {
  const uint32_t completed = GDN_RING_LOAD(ring->header->completed);
  const uint32_t count = completed - ring->seen;
  for (; ring->seen != completed; ++ring->seen) {
    const gdn_ring_completion completion = ring->completions[ring->seen % ring->entries];
    struct call* const call = &ring->calls[completion.id % ring->entries];
    if (call->id != completion.id) continue;
    if (call->state == kAbandoned) {
      free_call(ring, call);
    } else if (call->state == kInFlight) {
      call->completion = completion;
      call->state = kHeld;
    }
  }
  if (count != 0) pthread_cond_broadcast(&ring->changed);
  return count;
}

/* Looks for completions for a while without sleeping. Called without the mutex, by the thread that looks. */
static int spin(const gdn_ring* ring, uint32_t seen, uint32_t spin_us) {
  const int64_t begun = now_us();
  int i;
  if (spin_us == 0) return 0;
  do {
    for (i = 0; i < 64; ++i) {
      if (GDN_RING_LOAD(ring->header->completed) != seen) return 1;
      pause_briefly();
    }
  } while (now_us() - begun < spin_us);
  return 0;
}

/* Sleeps until the server announces a completion, its end, or `due`. Called without the mutex, by the thread that
 * looks. Returns 0 if the ring has ended. */
static int sleep_until(gdn_ring* ring, uint32_t seen, int64_t due) {
  struct pollfd polled[2] = {{ring->client_wake, POLLIN, 0}, {ring->peer, POLLIN, 0}};
  uint64_t announced;
  int ended, longest = 1000; /* ms: a wake-up that was lost, whoever lost it, costs a second and not for ever */
  GDN_RING_STORE(ring->header->client_waits, 1);
  ended = GDN_RING_LOAD(ring->header->ended) != GDN_RING_OPEN;
  if (!ended && GDN_RING_LOAD(ring->header->completed) == seen) {
    if (due != NEVER) {
      const int64_t left = (due - now_us() + 999) / 1000;
      if (left < longest) longest = left < 0 ? 0 : (int)left;
    }
    poll(polled, 2, longest);
    if (polled[1].revents != 0) ended = 1; /* the server's side of the socket has gone */
  }
  GDN_RING_STORE(ring->header->client_waits, 0);
  if (polled[0].revents != 0 && read(ring->client_wake, &announced, sizeof announced) < 0 && errno == EBADF) ended = 1;
  return !ended;
}

/* Waits for a change: completions, or what another thread has done. Returns at `due` at the latest. */
static void wait_for_change(gdn_ring* ring, int64_t due) {
  uint32_t seen, spin_us;
  int spun, open = 1;
  if (take_completions(ring) != 0 || ring->gone) return;
  if (ring->looking) {
    wait_for_others(ring, due);
    return;
  }
  ring->looking = 1;
  seen = ring->seen;
  spin_us = ring->spin_now;
  pthread_mutex_unlock(&ring->mutex);
  spun = spin(ring, seen, spin_us);
  if (!spun) open = sleep_until(ring, seen, due);
  pthread_mutex_lock(&ring->mutex);
  ring->looking = 0;
  /* Replies that take longer than a spin are not worth one; now and then they are tried again. */
  if (spun)
    ring->spin_now = ring->spin_us;
  else if (ring->spin_now > ring->spin_us / 16)
    ring->spin_now /= 2;
  if (take_completions(ring) == 0 && !open) ring->gone = 1;
  pthread_cond_broadcast(&ring->changed);
}

/* ---- Calls */

/* Returns the block that overlaps `bytes` bytes at `at`; NULL if there is none. places_only: of the places. */
static const struct call* block_at(const gdn_ring* ring, uint64_t at, uint64_t bytes, int places_only) {
  uint32_t i;
  for (i = 0; i < ring->entries; ++i) {
    const struct call* const other = &ring->calls[i];
    if (other->bytes == 0 || other->offset >= at + bytes || other->offset + other->bytes <= at) continue;
    if (other->placed || !places_only) return other;
  }
  return NULL;
}

/* Finds `bytes` free bytes of the area, the first that fit. Returns 0 if there are none. */
static int find_block(const gdn_ring* ring, uint64_t bytes, int places_only, uint64_t* offset) {
  const struct call* other;
  *offset = 0;
  for (;;) {
    if (bytes > ring->area_bytes || *offset > ring->area_bytes - bytes) return 0;
    other = block_at(ring, *offset, bytes, places_only);
    if (other == NULL) return 1;
    *offset = other->offset + other->bytes;
  }
}

/* The same for a place: the last that fit, in the upper half, so that places leave the lower half whole. */
static int find_place(const gdn_ring* ring, uint64_t bytes, int places_only, uint64_t* offset) {
  const uint64_t end = ring->area_bytes / GDN_RING_ALIGNMENT * GDN_RING_ALIGNMENT;
  const struct call* other;
  if (bytes > end) return 0;
  *offset = end - bytes;
  for (;;) {
    if (*offset < end / 2) return 0;
    other = block_at(ring, *offset, bytes, places_only);
    if (other == NULL) return 1;
    if (other->offset < bytes) return 0;
    *offset = other->offset - bytes;
  }
}

/* Finds a free call, and a block for it. places_only: as if all were free but the places. */
static int find_room(const gdn_ring* ring, uint64_t bytes, int for_place, int places_only, uint32_t* entry,
                     uint64_t* offset) {
  uint32_t places = 0, i;
  for (i = 0; i < ring->entries; ++i) places += ring->calls[i].placed != 0;
  if (for_place && places >= ring->entries / 2) return 0;
  *entry = 0;
  while (*entry < ring->entries && (places_only ? ring->calls[*entry].placed : ring->calls[*entry].state != kFree))
    ++*entry;
  if (*entry == ring->entries) return 0;
  return for_place ? find_place(ring, bytes, places_only, offset) : find_block(ring, bytes, places_only, offset);
}

/* Returns the bytes of a block for such a call, or more than the area has if it does not fit. */
static uint64_t block_bytes(const gdn_ring* ring, const gdn_ring_request* sizes) {
  const uint64_t most = ring->area_bytes; /* of each part, so that the sum does not overflow */
  uint64_t bytes;
  int i;
  if (sizes->message_bytes > most || sizes->reply_room > most) return most + 1;
  bytes = gdn_ring_aligned(sizes->message_bytes) +
          gdn_ring_aligned(sizes->reply_room < LEAST_ROOM ? LEAST_ROOM : sizes->reply_room);
  for (i = 0; i < GDN_RING_TENSORS; ++i) {
    if (sizes->tensor_bytes[i] > most) return most + 1;
    bytes += gdn_ring_aligned(sizes->tensor_bytes[i]);
  }
  return bytes;
}

/* Divides the call's block. */
static void divide_block(struct call* call, const gdn_ring_request* sizes) {
  int i;
  call->tensors_offset = call->reply_offset = call->offset + gdn_ring_aligned(sizes->message_bytes);
  for (i = 0; i < GDN_RING_TENSORS; ++i) {
    call->tensor_bytes[i] = sizes->tensor_bytes[i];
    call->reply_offset += gdn_ring_aligned(sizes->tensor_bytes[i]);
  }
  call->room = call->offset + call->bytes - call->reply_offset;
}

/* Takes a call with a block, waiting until there is one. The caller holds it until free_call or drop_call. Where the
 * places leave too little, nothing is waited for. */
static int take_call(gdn_ring* ring, const gdn_ring_request* sizes, int for_place, int64_t due, struct call** taken) {
  const uint64_t bytes = block_bytes(ring, sizes);
  uint64_t offset;
  uint32_t entry;
  if (bytes > ring->area_bytes) return GDN_RING_TOO_LARGE;
  for (;;) {
    if (ring->gone) return GDN_RING_GONE;
    if (find_room(ring, bytes, for_place, /*places_only=*/0, &entry, &offset)) break;
    if (!find_room(ring, bytes, for_place, /*places_only=*/1, &entry, &offset)) return GDN_RING_TOO_LARGE;
    if (now_us() >= due) return GDN_RING_TIMEOUT;
    wait_for_change(ring, due);
  }
  *taken = &ring->calls[entry];
  (*taken)->offset = offset;
  (*taken)->bytes = bytes;
  (*taken)->state = kHeld;
  (*taken)->placed = for_place;
  divide_block(*taken, sizes);
  return GDN_RING_OK;
}

/* Gives the call back, or leaves it to its completion: the server may still write to its block. */
static void drop_call(gdn_ring* ring, struct call* call) {
  if (call->state == kInFlight && !ring->gone)
    call->state = kAbandoned;
  else
    free_call(ring, call);
}

/* Returns where each tensor of the call lies. */
static void find_tensors(const gdn_ring* ring, const struct call* call, void* tensors[GDN_RING_TENSORS]) {
  char* at = ring->area + call->tensors_offset;
  int i;
  for (i = 0; i < GDN_RING_TENSORS; ++i) {
    tensors[i] = call->tensor_bytes[i] == 0 ? NULL : at;
    at += gdn_ring_aligned(call->tensor_bytes[i]);
  }
}

/* Puts a submission into the ring, once there is room. Returns 0 at `due`, or if the ring has ended. */
static int submit(gdn_ring* ring, const gdn_ring_submission* submission, int64_t due) {
  const uint64_t one = 1;
  uint32_t submitted = GDN_RING_LOAD(ring->header->submitted);
  while (submitted - GDN_RING_LOAD(ring->header->taken) >= ring->entries) {
    /* The server reads submissions at once, so it is about to. */
    if (ring->gone || GDN_RING_LOAD(ring->header->ended) != GDN_RING_OPEN || now_us() >= due) return 0;
    pthread_mutex_unlock(&ring->mutex);
    usleep(50);
    pthread_mutex_lock(&ring->mutex);
    submitted = GDN_RING_LOAD(ring->header->submitted);
  }
  ring->submissions[submitted % ring->entries] = *submission;
  GDN_RING_STORE(ring->header->submitted, submitted + 1);
  if (GDN_RING_LOAD(ring->header->server_waits) != 0 && write(ring->server_wake, &one, sizeof one) < 0) {
    /* The eventfd is full of announcements: the server has been told. */
  }
  return 1;
}

/* Waits for the call's completion. */
static int wait_for(gdn_ring* ring, struct call* call, int64_t due) {
  while (call->state == kInFlight) {
    if (ring->gone) return GDN_RING_GONE;
    if (now_us() >= due) return GDN_RING_TIMEOUT;
    wait_for_change(ring, due);
  }
  return GDN_RING_OK;
}

/* Gets the rest of a reply that did not fit, into call->whole. */
static int fetch_rest(gdn_ring* ring, struct call* call, uint64_t bytes, int64_t due) {
  const gdn_ring_completion whole = call->completion;
  gdn_ring_submission rest = {.id = call->id, .method = GDN_RING_FETCH, .reply_offset = call->reply_offset};
  uint64_t have = call->room;
  rest.reply_room = call->room;
  call->whole = malloc(bytes);
  if (call->whole == NULL) return GDN_RING_FAILED;
  memcpy(call->whole, ring->area + call->reply_offset, have);
  while (have < bytes) {
    int end;
    uint64_t got;
    rest.request_offset = have;
    call->state = kInFlight;
    if (!submit(ring, &rest, due)) {
      call->state = kHeld; /* the server does not know of this fetch */
      return ring->gone ? GDN_RING_GONE : GDN_RING_TIMEOUT;
    }
    end = wait_for(ring, call, due);
    if (end != GDN_RING_OK) return end;
    got = call->completion.message_bytes;
    if (call->completion.code != 0 || got == 0 || got > call->room || got > bytes - have) return GDN_RING_GONE;
    memcpy(call->whole + have, ring->area + call->reply_offset, got);
    have += got;
  }
  call->completion = whole;
  return GDN_RING_OK;
}

/* Submits the call, whose tensors lie in its block, and waits for its reply. */
static int run(gdn_ring* ring, struct call* call, uint32_t method, const void* message, uint64_t message_bytes,
               uint64_t timeout_us, int64_t due, gdn_ring_reply* reply) {
  gdn_ring_submission submission = {.method = method, .timeout_us = timeout_us, .message_bytes = message_bytes};
  const gdn_ring_completion* const found = &call->completion;
  const char* from;
  uint64_t bytes;
  int end;
  free(call->whole);
  call->whole = NULL;
  call->id = submission.id = ++ring->calls_made * ring->entries + (uint64_t)(call - ring->calls);
  submission.request_offset = call->tensors_offset - gdn_ring_aligned(message_bytes);
  memcpy(submission.tensor_bytes, call->tensor_bytes, sizeof submission.tensor_bytes);
  submission.reply_offset = call->reply_offset;
  submission.reply_room = call->room;
  memcpy(ring->area + submission.request_offset, message, message_bytes);
  call->state = kInFlight;
  if (!submit(ring, &submission, due)) {
    call->state = kHeld;
    return ring->gone || GDN_RING_LOAD(ring->header->ended) != GDN_RING_OPEN ? GDN_RING_GONE : GDN_RING_TIMEOUT;
  }
  end = wait_for(ring, call, due);
  bytes = gdn_ring_reply_bytes(found->message_bytes, found->output_bytes);
  if (end == GDN_RING_OK && bytes > call->room) end = fetch_rest(ring, call, bytes, due);
  if (end == GDN_RING_TIMEOUT && call->state == kInFlight) {
    const gdn_ring_submission cancel = {.id = call->id, .method = GDN_RING_CANCEL};
    submit(ring, &cancel, now_us() + 1000);
  }
  if (end != GDN_RING_OK) return end;
  from = call->whole != NULL ? call->whole : ring->area + call->reply_offset;
  reply->code = found->code;
  reply->message = from;
  reply->message_bytes = found->message_bytes;
  reply->output = found->output_bytes == 0 ? NULL : from + gdn_ring_aligned(found->message_bytes);
  reply->output_bytes = found->output_bytes;
  return GDN_RING_OK;
}

static int64_t due_of(uint64_t timeout_us) {
  const uint64_t most = INT64_MAX / 2;
  return timeout_us == 0 || timeout_us > most ? NEVER : now_us() + (int64_t)timeout_us;
}

int gdn_ring_call(gdn_ring* ring, uint32_t method, const gdn_ring_request* request, uint64_t timeout_us,
                  gdn_ring_reply* reply) {
  const int64_t due = due_of(timeout_us);
  void* tensors[GDN_RING_TENSORS];
  struct call* call;
  int end, i;
  memset(reply, 0, sizeof *reply);
  if (is_fork(ring)) return GDN_RING_FORKED;
  pthread_mutex_lock(&ring->mutex);
  end = take_call(ring, request, /*for_place=*/0, due, &call);
  if (end == GDN_RING_OK) {
    pthread_mutex_unlock(&ring->mutex); /* the block is this call's alone */
    find_tensors(ring, call, tensors);
    for (i = 0; i < GDN_RING_TENSORS; ++i) {
      if (tensors[i] != NULL) memcpy(tensors[i], request->tensors[i], request->tensor_bytes[i]);
    }
    pthread_mutex_lock(&ring->mutex);
    end = run(ring, call, method, request->message, request->message_bytes, timeout_us, due, reply);
    if (end == GDN_RING_OK)
      reply->kept = call;
    else
      drop_call(ring, call);
  }
  pthread_mutex_unlock(&ring->mutex);
  return end;
}

int gdn_ring_take_place(gdn_ring* ring, const gdn_ring_request* sizes, uint64_t timeout_us, gdn_ring_place* place) {
  const int64_t due = due_of(timeout_us);
  struct call* call;
  int end;
  memset(place, 0, sizeof *place);
  if (is_fork(ring)) return GDN_RING_FORKED;
  pthread_mutex_lock(&ring->mutex);
  end = take_call(ring, sizes, /*for_place=*/1, due, &call);
  pthread_mutex_unlock(&ring->mutex);
  if (end != GDN_RING_OK) return end;
  find_tensors(ring, call, place->tensors);
  place->kept = call;
  return GDN_RING_OK;
}

int gdn_ring_call_in(gdn_ring* ring, const gdn_ring_place* place, uint32_t method, const void* message,
                     uint64_t message_bytes, uint64_t timeout_us, gdn_ring_reply* reply) {
  const int64_t due = due_of(timeout_us);
  struct call* const call = place->kept;
  int end;
  memset(reply, 0, sizeof *reply);
  if (is_fork(ring)) return GDN_RING_FORKED;
  if (message_bytes > call->tensors_offset - call->offset) return GDN_RING_TOO_LARGE;
  pthread_mutex_lock(&ring->mutex);
  end = wait_for(ring, call, due); /* for a call that had no time left */
  if (end == GDN_RING_OK) end = run(ring, call, method, message, message_bytes, timeout_us, due, reply);
  pthread_mutex_unlock(&ring->mutex);
  return end;
}

/* Takes a call back from the caller; a fork's is its parent's. */
static void take_back(gdn_ring* ring, struct call* call) {
  if (call == NULL || is_fork(ring)) return;
  pthread_mutex_lock(&ring->mutex);
  drop_call(ring, call);
  pthread_mutex_unlock(&ring->mutex);
}

void gdn_ring_return_place(gdn_ring* ring, gdn_ring_place* place) {
  take_back(ring, place->kept);
  memset(place, 0, sizeof *place);
}

void gdn_ring_release(gdn_ring* ring, gdn_ring_reply* reply) {
  take_back(ring, reply->kept);
  memset(reply, 0, sizeof *reply);
}

int gdn_ring_is_open(const gdn_ring* ring) {
  return !is_fork(ring) && !ring->gone && GDN_RING_LOAD(ring->header->ended) == GDN_RING_OPEN;
}

uint64_t gdn_ring_area_bytes(const gdn_ring* ring) { return ring->area_bytes; }
