/* A client's side of a ring (ring_layout.h): sends steps to the server on this host without gRPC.
 *
 * ShareMemory with ring_entries gives the path of the server's socket and a token that works once. gdn_ring_open passes
 * the token and gets the ring's memory. A call has the messages of Step, Decode, Prefill or AcceptTokens, with the
 * bytes of their tensors apart. Replies may come in another order than their calls.
 * Thread safety: all functions from any thread, but gdn_ring_close once and last. A ring is for the process that opened
 * it: in a fork of that process calls end with GDN_RING_FORKED. Ownership: as each function says.
 *
 *   gdn_ring* ring;
 *   if (gdn_ring_open(path, token, 50, 500000, &ring, why, sizeof why) != 0) return Fail(why);
 *   gdn_ring_reply reply;
 *   const int end = gdn_ring_call(ring, GDN_RING_STEP, &request, timeout_us, &reply);
 *   if (end == GDN_RING_OK) { Use(&reply); gdn_ring_release(ring, &reply); }
 */
#ifndef GDN_RING_GDN_RING_H_
#define GDN_RING_GDN_RING_H_

#include <stddef.h>
#include <stdint.h>

#include "ring/ring_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gdn_ring gdn_ring;

/* Results of the functions. */
enum {
  GDN_RING_OK = 0,        /* the server has answered; the answer may be an error */
  GDN_RING_TOO_LARGE = 1, /* the call does not fit the ring beside its places, and was not made: send a message */
  GDN_RING_TIMEOUT = 2,   /* the time is over; the server may still run the call */
  GDN_RING_GONE = 3,      /* the ring has ended, or the server; the server may have run the call */
  GDN_RING_FAILED = 4,    /* this process ran out of memory */
  GDN_RING_FORKED = 5     /* another process opened the ring, and this one is its fork: send a message */
};

typedef struct {
  const void* message; /* the request, without the bytes of its tensors */
  uint64_t message_bytes;
  const void* tensors[GDN_RING_TENSORS]; /* in the order of the input's fields; NULL with 0 bytes where none is */
  uint64_t tensor_bytes[GDN_RING_TENSORS];
  uint64_t reply_room; /* bytes that the reply is expected to have; a longer one costs a second round trip */
} gdn_ring_request;

typedef struct {
  uint32_t code;       /* the status code, as of gRPC */
  const void* message; /* the response without the output's bytes; if code is not 0, a google.rpc.Status */
  uint64_t message_bytes;
  const void* output;
  uint64_t output_bytes;
  void* kept; /* for gdn_ring_release */
} gdn_ring_reply;

/* A place in the ring's area for calls that come one after the other. Their tensors lie there, so they are not copied
 * into the ring, and outputs are read there. */
typedef struct {
  void* tensors[GDN_RING_TENSORS]; /* where the caller writes the bytes of each; NULL where there are none */
  void* kept;                      /* for the functions below */
} gdn_ring_place;

/* Opens the ring that `token` (GDN_RING_TOKEN_BYTES bytes) stands for, at the server's socket. `spin_us`: how long a
 * call looks for its reply before it sleeps, in microseconds; 0: not at all. Waits for the server for at most
 * `timeout_us` microseconds in all, and never longer than two seconds. Returns 0, or an errno with the reason in `why`.
 * The caller gets *ring, and ends it by gdn_ring_close. */
int gdn_ring_open(const char* socket_path, const void* token, uint32_t spin_us, uint64_t timeout_us, gdn_ring** ring,
                  char* why, size_t why_bytes);
/* Ends the ring. No other function may run or be called any more, and no reply may be in use. NULL is ignored. A fork
 * only gives its own memory back; the ring goes on in the process that opened it. */
void gdn_ring_close(gdn_ring* ring);

/* Makes one call and waits for its reply, `timeout_us` microseconds at most (0: without a limit). The server drops a
 * call that has not begun by then. On GDN_RING_OK the reply is valid until gdn_ring_release, which the caller owes. */
int gdn_ring_call(gdn_ring* ring, uint32_t method, const gdn_ring_request* request, uint64_t timeout_us,
                  gdn_ring_reply* reply);
/* Gives the reply's memory back. */
void gdn_ring_release(gdn_ring* ring, gdn_ring_reply* reply);

/* Takes a place for calls with messages of at most sizes->message_bytes bytes, tensors of sizes->tensor_bytes bytes
 * each and replies of sizes->reply_room bytes; the pointers in `sizes` are not read. Until it is returned, it holds one
 * of the ring's entries and a part of its area. All places have at most half of both: GDN_RING_TOO_LARGE where that is
 * too little. Waits for calls that are in the way. */
int gdn_ring_take_place(gdn_ring* ring, const gdn_ring_request* sizes, uint64_t timeout_us, gdn_ring_place* place);
/* Makes one call with the tensors that are in the place, and waits for its reply as gdn_ring_call does. A place is for
 * one call at a time. The reply, which needs no gdn_ring_release, is valid until the next call or the place's return.
 * The tensors stay as they are. Write them only when the call has ended in GDN_RING_OK: after a GDN_RING_TIMEOUT the
 * server may still read them until a later call has ended. */
int gdn_ring_call_in(gdn_ring* ring, const gdn_ring_place* place, uint32_t method, const void* message,
                     uint64_t message_bytes, uint64_t timeout_us, gdn_ring_reply* reply);
void gdn_ring_return_place(gdn_ring* ring, gdn_ring_place* place);

/* Returns 1 while this process may use the ring, 0 once the ring or its server has ended, and in a fork. */
int gdn_ring_is_open(const gdn_ring* ring);
/* Returns the bytes of the ring's area, which all calls in flight share. */
uint64_t gdn_ring_area_bytes(const gdn_ring* ring);

#ifdef __cplusplus
}
#endif

#endif /* GDN_RING_GDN_RING_H_ */
