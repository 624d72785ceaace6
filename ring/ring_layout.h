/* The form of a ring: memory in which one client sends steps to the server on its host, and gets their replies.
 *
 * The memory is a memfd that the server makes and seals, so its size never changes. It begins with a header, then come
 * the submissions, the completions and the area. The client owns the area: it puts messages and tensors into it, and
 * says where the server shall put the reply. Counters only grow, modulo 2^32; entry N is at index N % entries.
 * The server reads each submission once, and trusts nothing that it reads. So a client can harm only its own calls.
 * Thread safety: each word has one writer, named below; use the GDN_RING_LOAD and GDN_RING_STORE of this file.
 * Ownership: none. For C11 and C++.
 */
#ifndef GDN_RING_RING_LAYOUT_H_
#define GDN_RING_RING_LAYOUT_H_

#include <stdint.h>

#define GDN_RING_MAGIC 0x474e5247u /* "GRNG" */
#define GDN_RING_VERSION 1u
#define GDN_RING_MOST_ENTRIES 256u
#define GDN_RING_TENSORS 5       /* most tensors of a submission */
#define GDN_RING_ALIGNMENT 64    /* bytes: of tensors and outputs in the area */
#define GDN_RING_TOKEN_BYTES 32  /* of the token that opens a ring */
#define GDN_RING_FDS 3           /* that the server passes: the memory, its own eventfd, the client's eventfd */

/* What a submission asks for. The first four have the messages of the methods with these names. */
enum {
  GDN_RING_STEP = 1,
  GDN_RING_DECODE = 2,
  GDN_RING_PREFILL = 3,
  GDN_RING_ACCEPT_TOKENS = 4,
  GDN_RING_FETCH = 5, /* the rest of a reply that did not fit: request_offset is where in the reply to begin */
  GDN_RING_CANCEL = 6 /* cancels the submission `id`; it has no completion of its own */
};

/* Why a ring ended. */
enum {
  GDN_RING_OPEN = 0,
  GDN_RING_ENDED = 1,  /* the server drains, the client's ShareMemory call has ended, or its login has */
  GDN_RING_BROKEN = 2  /* the client broke the rules of this file */
};

typedef struct {
  uint32_t value;
  uint32_t unused[15]; /* a cache line each */
} gdn_ring_word;

typedef struct {
  /* Written by the server before the client gets the memory. The client copies and checks them. */
  uint32_t magic, version, entries, unused_a;
  uint64_t bytes;       /* of the whole memory */
  uint64_t area_offset; /* from the start of the memory */
  uint64_t area_bytes;
  uint64_t unused_b[3];
  gdn_ring_word submitted;    /* by the client: number of submissions */
  gdn_ring_word taken;        /* by the server: number of submissions that it has read */
  gdn_ring_word server_waits; /* by the server: 1 if a submission must be announced on the server's eventfd */
  gdn_ring_word completed;    /* by the server: number of completions */
  gdn_ring_word client_waits; /* 1, by the client: a completion must be announced on its eventfd; 0, by both */
  gdn_ring_word ended;        /* by the server: GDN_RING_OPEN, .._ENDED or .._BROKEN */
} gdn_ring_header;

/* The request's message without the bytes of its tensors is at request_offset of the area. The tensors follow, in the
 * order of the input's fields, each at the next multiple of 64. A tensor that the input has not, or that lies in a
 * shared region, has no bytes. */
typedef struct {
  uint64_t id; /* chosen by the client; comes back in the completion */
  uint32_t method;
  uint32_t unused_a;
  uint64_t timeout_us; /* from the server's taking it; 0: none */
  uint64_t request_offset;
  uint64_t message_bytes;
  uint64_t tensor_bytes[GDN_RING_TENSORS];
  uint64_t reply_offset;
  uint64_t reply_room; /* bytes for the reply at reply_offset */
  uint64_t unused_b[4];
} gdn_ring_submission;

/* The reply is a message, then, at the next multiple of 64, the output's bytes. The message is the method's response
 * without those, or a google.rpc.Status if `code` is not 0. If the reply is longer than reply_room, its first bytes
 * are there; GDN_RING_FETCH gets the others, which the server keeps until all were fetched. It keeps at most `entries`
 * such replies and drops the oldest. A fetch's reply is a message of as many bytes as fit. */
typedef struct {
  uint64_t id;
  uint32_t code; /* the status code, as of gRPC */
  uint32_t unused_a;
  uint64_t message_bytes;
  uint64_t output_bytes;
  uint64_t unused_b[4];
} gdn_ring_completion;

/* One order of all these among all threads of both processes: each side stores a word and then loads the other's. */
#define GDN_RING_LOAD(word) __atomic_load_n(&(word).value, __ATOMIC_SEQ_CST)
#define GDN_RING_STORE(word, to) __atomic_store_n(&(word).value, (to), __ATOMIC_SEQ_CST)

static inline uint64_t gdn_ring_aligned(uint64_t bytes) {
  return (bytes + GDN_RING_ALIGNMENT - 1) / GDN_RING_ALIGNMENT * GDN_RING_ALIGNMENT;
}
static inline uint64_t gdn_ring_submissions_offset(void) { return gdn_ring_aligned(sizeof(gdn_ring_header)); }
static inline uint64_t gdn_ring_completions_offset(uint32_t entries) {
  return gdn_ring_submissions_offset() + entries * sizeof(gdn_ring_submission);
}
static inline uint64_t gdn_ring_area_offset(uint32_t entries) {
  const uint64_t page = 4096;
  const uint64_t end = gdn_ring_completions_offset(entries) + entries * sizeof(gdn_ring_completion);
  return (end + page - 1) / page * page;
}
/* Returns the bytes of a reply: the message, then the output at the next multiple of 64. */
static inline uint64_t gdn_ring_reply_bytes(uint64_t message_bytes, uint64_t output_bytes) {
  return output_bytes == 0 ? message_bytes : gdn_ring_aligned(message_bytes) + output_bytes;
}

#endif /* GDN_RING_RING_LAYOUT_H_ */
