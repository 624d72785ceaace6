/* libgdn: the Gated DeltaNet kernels of gdn-service in the calling process, without a server.
 *
 * A context is a backend on a device. A pool is a number of slots, each the state of one sequence in one layer. Prefill
 * and decode advance slots by tokens, batches of sequences at a time. The kernels, the states' layout and the state
 * files are the server's: results have the bits that a server of the same gdn_context_numerics_id() gives, and a state
 * exported here can be imported there.
 *
 *   gdn_context* context;  gdn_pool* pool;  int32_t slot;
 *   if (gdn_context_create(GDN_CPU, 0, 0, &context) != GDN_OK) return puts(gdn_last_error());
 *   gdn_pool_spec spec = {sizeof(gdn_pool_spec), 16, 32, 128, 128};   // H, HV, K, V; the rest is 0: the defaults
 *   spec.slots = 64;
 *   gdn_pool_create(context, &spec, &pool);   gdn_slots_allocate(pool, 1, &slot);
 *   ... gdn_prefill(pool, &step);  gdn_decode(pool, &step); ...
 *   gdn_pool_destroy(pool);  gdn_context_destroy(context);
 *
 * Errors: functions that return int return GDN_OK or another gdn_code. gdn_last_error() then says what was wrong, what
 * was expected and what to do. Arguments are checked, and memory is acquired, before a state is touched, so a step that
 * fails leaves its states as they were. If a call fails all the same when it may have changed a state for good, the
 * state is lost: calls that read it return GDN_DATA_LOSS (STATE_LOST) until gdn_slots_zero, gdn_state_import,
 * gdn_state_set or a copy gives the slot another. Values are not checked: a NaN stays in its own sequence.
 *
 * Threads: every function may be called from any thread. Calls on one context and its pools run one after the other.
 * Destroying a context or pool that another thread is using is an error that is not detected.
 *
 * Streams: on a GPU, tensors are memory of the context's device, and what takes a stream of the caller's (hipStream_t,
 * cudaStream_t; NULL is the default stream) runs behind what that has and before what it is given next. Steps, zeroing
 * and copying return without waiting; what reads or writes a state for the host waits. A stream that is being captured
 * into a graph is refused (GDN_INVALID_ARGUMENT): nothing is issued or changed, and the capture goes on. On a CPU
 * tensors are host memory, streams are ignored, and everything is done when a call returns. Making and destroying
 * contexts leaves the calling thread on the context's device (hipSetDevice, cudaSetDevice); no other function changes
 * it.
 *
 * Arrays of indices (slots, cu_seqlens), files and what gdn_state_get and gdn_state_set take are always host memory,
 * read or written before the call returns.
 *
 * Compatibility: functions and fields are added, never changed or removed, while GDN_ABI_VERSION stays; the shared
 * library's soname has that number. Structs begin with their size, so that fields can be added at their ends; zero
 * them first. */
#ifndef GDN_H_
#define GDN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(GDN_BUILDING_LIBRARY)
#define GDN_API __attribute__((visibility("default")))
#else
#define GDN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GDN_ABI_VERSION 1

typedef enum gdn_code {
  GDN_OK = 0,
  GDN_INVALID_ARGUMENT = 1,    /* the call is at fault: read gdn_last_error() */
  GDN_OUT_OF_MEMORY = 2,       /* of the host, the device or the pool's slots */
  GDN_FAILED_PRECONDITION = 3, /* no such device, or a state of another kind than the pool's */
  GDN_DATA_LOSS = 4,           /* a state file that is cut or damaged, or a state that is lost */
  GDN_DEVICE_FAILED = 5,       /* the device is lost: end the process */
  GDN_INTERNAL = 6             /* a fault of this library */
} gdn_code;

typedef enum gdn_backend {
  GDN_CPU = 1,
  GDN_GPU = 2 /* what this library was built for; see gdn_gpu_name() */
} gdn_backend;

typedef enum gdn_dtype { GDN_F32 = 1, GDN_F16 = 2, GDN_BF16 = 3 } gdn_dtype;

typedef struct gdn_context gdn_context;
typedef struct gdn_pool gdn_pool;
typedef struct gdn_bytes gdn_bytes;

/* ---- The library. */

/* GDN_ABI_VERSION of the library that is loaded. Others than the header's: do not use it. */
GDN_API int32_t gdn_abi_version(void);
/* "0.1.0". Valid for ever. */
GDN_API const char* gdn_version(void);
/* "gpu" where this library has kernels for GPUs, "" where it has none. Valid for ever. */
GDN_API const char* gdn_gpu_name(void);
/* What the calling thread's last failed call reported; "" before any. Valid until this thread's next failed call. */
GDN_API const char* gdn_last_error(void);
/* A word for programs beside it, such as "INVALID_TENSOR_SHAPE" (docs/reference/errors.md lists them), or "". Valid as above. */
GDN_API const char* gdn_last_reason(void);

/* ---- Contexts. */

/* device: of GPUs, among those that HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES leaves; 0 for the CPU.
 * threads: of the CPU; 0: one for each processor that this process may run on.
 * GDN_FAILED_PRECONDITION where there is no such device or the library has no kernels for it. */
GDN_API int gdn_context_create(int32_t backend, int32_t device, int32_t threads, gdn_context** context);
/* Waits for its work. Pools have to be destroyed first. NULL is ignored. */
GDN_API void gdn_context_destroy(gdn_context* context);
/* For people: the processor's or card's name. Valid as long as the context. */
GDN_API const char* gdn_context_device(const gdn_context* context);
/* Contexts and servers of equal ids (and state dtypes) compute equal bits. Valid as long as the context. */
GDN_API const char* gdn_context_numerics_id(const gdn_context* context);
/* Waits for everything that was given to the context, and reports its first failure. */
GDN_API int gdn_context_synchronize(gdn_context* context);

/* ---- Pools: slots of state. */

/* How many log decays g a token has for a value head: one, or K, one for each row of S [K, V] (KDA). */
typedef enum gdn_decay { GDN_DECAY_PER_HEAD = 0, GDN_DECAY_PER_CHANNEL = 1 } gdn_decay;

typedef struct gdn_pool_spec {
  size_t struct_size;
  int32_t key_heads;         /* H */
  int32_t value_heads;       /* HV, a multiple of H: value head h reads key head h / (HV / H) */
  int32_t key_dim;           /* K */
  int32_t value_dim;         /* V */
  int32_t conv_width;        /* W, taps of the causal convolution; 0 for the delta rule alone */
  int32_t hidden_size;       /* D of the model, which state files name; 1 or more with a convolution, else 0 */
  int32_t max_decode_tokens; /* of a row of one decode, 1 .. 64; 0: 8. A slot's log has room for 15 more */
  int32_t state_dtype;       /* of the matrices S: GDN_F32 or GDN_BF16; 0: GDN_F32. All else is float32 */
  int32_t slots;
  /* A pool over the caller's memory, where it is not NULL: gdn_pool_bytes() bytes of the context's device, aligned to
   * 64, which outlive the pool. All zero is fresh states. Everything that a pool remembers is in it and in the two
   * arrays, so pools can be made and destroyed around each call, and memory and arrays together may be copied. */
  void* memory;
  int64_t* token_counts; /* [slots] host memory, tokens seen; only and always with memory */
  int32_t* log_lengths;  /* [slots] host memory, entries of the log in use, -1: lost; only and always with memory */
  int32_t decay;         /* a gdn_decay; by channel only without a convolution. A spec that ends before it has 0 */
  size_t memory_bytes;   /* of memory: fewer than gdn_pool_bytes() are refused; 0: unknown, not checked. As decay */
} gdn_pool_spec;

/* Bytes of a pool's memory. */
GDN_API int gdn_pool_bytes(const gdn_pool_spec* spec, size_t* bytes);
GDN_API int gdn_pool_create(gdn_context* context, const gdn_pool_spec* spec, gdn_pool** pool);
/* Waits for the context's work, and frees the pool's memory. A pool over the caller's memory is destroyed without a
 * wait: work that was issued goes on in that memory, so keep it until the stream or gdn_context_synchronize() says that
 * the work has ended. NULL is ignored. */
GDN_API void gdn_pool_destroy(gdn_pool* pool);

/* Takes `count` free slots, zeroed. All or none: GDN_OUT_OF_MEMORY where fewer are free. Pools over the caller's memory
 * have no list of free slots: all of theirs are in use. */
GDN_API int gdn_slots_allocate(gdn_pool* pool, int32_t count, int32_t* slots);
GDN_API int gdn_slots_free(gdn_pool* pool, int32_t count, const int32_t* slots);
/* Makes states fresh. */
GDN_API int gdn_slots_zero(gdn_pool* pool, int32_t count, const int32_t* slots, void* stream);
/* The state of from[i] into to[i], which becomes an independent copy: a fork. The slots of `to` are distinct, and none
 * of them is in `from`. */
GDN_API int gdn_slots_copy(gdn_pool* pool, int32_t count, const int32_t* from, const int32_t* to, void* stream);
/* How many tokens a state has seen. */
GDN_API int gdn_slot_tokens(gdn_pool* pool, int32_t slot, int64_t* tokens);

/* ---- Steps. */

/* Dense, the last dimension first in memory; data is aligned to an element. */
typedef struct gdn_tensor {
  void* data; /* inputs are only read */
  int32_t dtype;
  int32_t rank;
  int64_t shape[4];
} gdn_tensor;

/* Sequences of different lengths laid end to end: sequence i is rows [cu_seqlens[i], cu_seqlens[i + 1]) of a tensor. */
typedef struct gdn_batch {
  int32_t sequences;
  const int32_t* cu_seqlens; /* [sequences + 1] host memory, from 0 to the tensors' tokens, never falling */
  const int32_t* slots;      /* [sequences] host memory, distinct; a negative one is padding, whose outputs are zero */
} gdn_batch;

/* The delta rule. For each value head, S [K, V] being its state and token after token:
 *   S <- exp(g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q
 * or, of a pool that decays by channel, diag(exp(g)) S.
 * Tensors may be of different dtypes; they are computed in float32. */
typedef struct gdn_delta_rule_step {
  size_t struct_size;
  gdn_batch batch;
  gdn_tensor q;          /* [tokens, H, K] */
  gdn_tensor k;          /* [tokens, H, K] */
  gdn_tensor v;          /* [tokens, HV, V] */
  gdn_tensor g;          /* [tokens, HV], or [tokens, HV, K] by channel: log decay, <= 0 */
  gdn_tensor beta;       /* [tokens, HV] write strength, in [0, 2] */
  gdn_tensor output;     /* [tokens, HV, V] o */
  float scale;           /* multiplies q; 0: K^-0.5 */
  int32_t use_qk_l2norm; /* not 0: q and k are divided by their l2 norms first (1e-6 inside the root) */
  void* stream;
  float max_beta; /* no beta is above this; 0: 2. A prefill is chunked only if it is 1 or less */
} gdn_delta_rule_step;

/* Prompts: as many tokens as a sequence has, chunked from 32 on if no beta is above 1. In any split into calls the
 * results are those of one call within 1e-5, and a sequence's bits depend on its own calls alone, never on its
 * companions. */
GDN_API int gdn_prefill(gdn_pool* pool, const gdn_delta_rule_step* step);
/* Steps: 0 to max_decode_tokens tokens of each sequence, with a deferred update of the state: quicker than a prefill of
 * as many. T tokens in one call give the bits of T calls. */
GDN_API int gdn_decode(gdn_pool* pool, const gdn_delta_rule_step* step);

/* The delta rule with what a Gated DeltaNet layer has around it, but for the projections. The weights are
 * float32, memory of the device. C = 2 H K + HV V channels, in the order q, k, v. */
typedef struct gdn_mixer_weights {
  gdn_tensor conv_weight; /* [C, W]; tap W - 1 meets the current token */
  gdn_tensor a_log;       /* [HV] */
  gdn_tensor dt_bias;     /* [HV] */
  gdn_tensor norm_weight; /* [V] */
  float norm_epsilon;     /* 0: 1e-6 */
} gdn_mixer_weights;

/* Of a pool with a convolution, whose columns are part of the state:
 *   q, k, v = silu(conv1d(mixed_qkv));  q, k divided by their l2 norms (1e-6 inside the root);  q scaled by K^-0.5
 *   g = -exp(a_log) softplus(a + dt_bias);  beta = sigmoid(b);  o: the delta rule
 *   output = o / sqrt(mean(o^2) + norm_epsilon) * norm_weight * silu(z), for each head */
typedef struct gdn_mixer_step {
  size_t struct_size;
  gdn_batch batch;
  gdn_mixer_weights weights;
  gdn_tensor mixed_qkv; /* [tokens, C] */
  gdn_tensor z;         /* [tokens, HV, V] */
  gdn_tensor b;         /* [tokens, HV] */
  gdn_tensor a;         /* [tokens, HV] */
  gdn_tensor output;    /* [tokens, HV, V] */
  void* stream;
} gdn_mixer_step;

/* As gdn_prefill and gdn_decode. A pool with a convolution takes these alone, one without takes those. */
GDN_API int gdn_mixer_prefill(gdn_pool* pool, const gdn_mixer_step* step);
GDN_API int gdn_mixer_decode(gdn_pool* pool, const gdn_mixer_step* step);

/* ---- States as files and as matrices. */

/* A state file (safetensors; docs/reference/state-files.md) whose layer i is the state of slots[i]: what gdnctl state import
 * takes. Bits go on where they were. */
GDN_API int gdn_state_export(gdn_pool* pool, int32_t count, const int32_t* slots, void* stream, gdn_bytes** file);
GDN_API const void* gdn_bytes_data(const gdn_bytes* bytes);
GDN_API size_t gdn_bytes_size(const gdn_bytes* bytes);
GDN_API void gdn_bytes_free(gdn_bytes* bytes); /* NULL is ignored */
/* The states of a file with `count` layers, in their order, into slots. All are verified before any is written.
 * GDN_DATA_LOSS for a damaged file, GDN_FAILED_PRECONDITION for one of other dimensions or another state dtype, and for
 * one with tokens that wait to be accepted or dropped. */
GDN_API int gdn_state_import(gdn_pool* pool, int32_t count, const int32_t* slots, const void* file, size_t bytes,
                             void* stream);

/* S itself, float32 [HV, K, V], with all tokens seen: the state is not changed. */
GDN_API int gdn_state_get(gdn_pool* pool, int32_t slot, float* matrices, void* stream);
/* Replaces S; the slot has then seen `tokens` tokens and has an empty log. A convolution's columns become zero. */
GDN_API int gdn_state_set(gdn_pool* pool, int32_t slot, const float* matrices, int64_t tokens, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* GDN_H_ */
