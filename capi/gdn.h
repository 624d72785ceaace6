/* libgdn: the Gated DeltaNet kernels of gdn-service in the calling process, without a server.
 *
 * A context is a backend on a device. A pool has slots, and each slot holds the state of one sequence in one layer.
 * Prefill and decode advance slots by tokens, for a batch of sequences at a time. The kernels, state layout and state
 * files are those of the server. A server with the same gdn_context_numerics_id() computes the same bits, and it can
 * import states that are exported here.
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
 * was expected and what to do. Functions check arguments and allocate memory before they change a state. So a step that
 * fails leaves its states unchanged. If a call fails later, when it may have changed a state, the state is lost. Calls
 * that read it return GDN_DATA_LOSS (STATE_LOST) until gdn_slots_zero, gdn_state_import, gdn_state_set or a copy gives
 * the slot a new state. Values are not checked. A NaN affects only its own sequence.
 *
 * Threads: every function may be called from any thread. Calls on one context and its pools run one after the other.
 * Do not destroy a context or pool that another thread is using; this error is not detected.
 *
 * Streams: on a GPU, tensors are memory of the context's device. Functions that take a stream (hipStream_t,
 * cudaStream_t; NULL is the default stream) run in its order: after its earlier work and before its later work. Steps,
 * zeroing and copying return without waiting. Functions that read or write a state for the host wait. A stream that is
 * being captured into a graph is refused (GDN_INVALID_ARGUMENT); nothing is issued or changed, and the capture goes on.
 * On a CPU, tensors are host memory, streams are ignored, and all work is done when a call returns. Creating or
 * destroying a context leaves the calling thread on the context's device (hipSetDevice, cudaSetDevice); no other
 * function changes the device.
 *
 * Index arrays (slots, cu_seqlens), files, and the matrices of gdn_state_get and gdn_state_set are always host memory.
 * They are read or written before the call returns.
 *
 * Compatibility: while GDN_ABI_VERSION is the same, functions and fields are only added, never changed or removed. The
 * shared library's soname has that number. Structs begin with their size, so that fields can be added at their ends.
 * Zero a struct before you fill it. */
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
  GDN_INVALID_ARGUMENT = 1,    /* the call is wrong: read gdn_last_error() */
  GDN_OUT_OF_MEMORY = 2,       /* the host, the device or the pool's slots are exhausted */
  GDN_FAILED_PRECONDITION = 3, /* there is no such device, or a state does not fit the pool */
  GDN_DATA_LOSS = 4,           /* a state file is truncated or damaged, or a state is lost */
  GDN_DEVICE_FAILED = 5,       /* the device is lost: end the process */
  GDN_INTERNAL = 6             /* a fault of this library */
} gdn_code;

typedef enum gdn_backend {
  GDN_CPU = 1,
  GDN_GPU = 2 /* the kind of GPU that this library was built for; see gdn_gpu_name() */
} gdn_backend;

typedef enum gdn_dtype { GDN_F32 = 1, GDN_F16 = 2, GDN_BF16 = 3 } gdn_dtype;

typedef struct gdn_context gdn_context;
typedef struct gdn_pool gdn_pool;
typedef struct gdn_bytes gdn_bytes;

/* ---- The library. */

/* GDN_ABI_VERSION of the loaded library. If it differs from the header's, do not use the library. */
GDN_API int32_t gdn_abi_version(void);
/* The library's version, such as "0.1.0". The string is always valid. */
GDN_API const char* gdn_version(void);
/* "gpu" if this library has kernels for GPUs, else "". The string is always valid. */
GDN_API const char* gdn_gpu_name(void);
/* The message of the calling thread's last failed call, or "". Valid until this thread's next failed call. */
GDN_API const char* gdn_last_error(void);
/* The reason of that call for programs, such as "INVALID_TENSOR_SHAPE", or "". docs/reference/errors.md lists the
 * reasons. Valid until this thread's next failed call. */
GDN_API const char* gdn_last_reason(void);

/* ---- Contexts. */

/* Makes a context, which the caller destroys. backend: a gdn_backend.
 * device: index of the GPU, among those that HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES leaves; 0 for the CPU.
 * threads: number of CPU threads. 0: one for each processor that this process may use. A GPU does not use it.
 * GDN_FAILED_PRECONDITION if there is no such device, or the library has no kernels for it. */
GDN_API int gdn_context_create(int32_t backend, int32_t device, int32_t threads, gdn_context** context);
/* Waits for the context's work, and destroys the context. Destroy its pools first. NULL is ignored. */
GDN_API void gdn_context_destroy(gdn_context* context);
/* The name of the processor or card, for people. Valid as long as the context. */
GDN_API const char* gdn_context_device(const gdn_context* context);
/* Identifies the arithmetic: contexts and servers with equal ids and state dtypes compute equal bits. Valid as long as
 * the context. */
GDN_API const char* gdn_context_numerics_id(const gdn_context* context);
/* Waits for all work of the context, and reports the first failure. */
GDN_API int gdn_context_synchronize(gdn_context* context);

/* ---- Pools: slots of state. */

/* Number of log decays g that a token has for each value head: one, or K, one for each row of S [K, V] (KDA). */
typedef enum gdn_decay { GDN_DECAY_PER_HEAD = 0, GDN_DECAY_PER_CHANNEL = 1 } gdn_decay;

typedef struct gdn_pool_spec {
  size_t struct_size;
  int32_t key_heads;         /* H */
  int32_t value_heads;       /* HV, a multiple of H: value head h reads key head h / (HV / H) */
  int32_t key_dim;           /* K */
  int32_t value_dim;         /* V */
  int32_t conv_width;        /* W, taps of the causal convolution; 0 for the delta rule without a convolution */
  int32_t hidden_size;       /* D of the model, which state files name; 1 or more with a convolution, else 0 */
  int32_t max_decode_tokens; /* most tokens of a row in a decode, 1 .. 64; 0: 8. A slot's log has room for 15 more */
  int32_t state_dtype;       /* dtype of the matrices S: GDN_F32 or GDN_BF16; 0: GDN_F32. All else is float32 */
  int32_t slots;
  /* If not NULL, the pool uses this memory of the caller: gdn_pool_bytes() bytes on the context's device, aligned to
   * 64, which must outlive the pool. All zeros are fresh states. The memory and the two arrays hold all data of a pool.
   * So a pool can be made and destroyed around each call, and a copy of all three is a copy of its states. */
  void* memory;
  int64_t* token_counts; /* [slots] host memory, tokens seen; set exactly if memory is set */
  int32_t* log_lengths;  /* [slots] host memory, entries of the log in use, -1: lost; set exactly if memory is set */
  int32_t decay;         /* a gdn_decay; per channel only without a convolution */
  size_t memory_bytes;   /* size of memory, gdn_pool_bytes() or more; 0: not checked */
} gdn_pool_spec;

/* Sets *bytes to the size of the memory of a pool with this spec. The spec's memory and arrays are not read. */
GDN_API int gdn_pool_bytes(const gdn_pool_spec* spec, size_t* bytes);
/* Makes a pool, which the caller destroys before the context. The spec is copied. Without the caller's memory, all
 * slots are free. GDN_OUT_OF_MEMORY if the device has too little memory. */
GDN_API int gdn_pool_create(gdn_context* context, const gdn_pool_spec* spec, gdn_pool** pool);
/* Waits for the context's work, and frees the pool's memory. If the pool uses the caller's memory, it does not wait:
 * issued work continues in that memory. So keep the memory until the stream or gdn_context_synchronize() shows that the
 * work has ended. NULL is ignored. */
GDN_API void gdn_pool_destroy(gdn_pool* pool);

/* Allocates `count` free slots with zero states, or none: GDN_OUT_OF_MEMORY if fewer are free. A pool over the caller's
 * memory has no free slots; all of them are in use. */
GDN_API int gdn_slots_allocate(gdn_pool* pool, int32_t count, int32_t* slots);
/* Frees distinct slots that are in use; if one is not, GDN_INVALID_ARGUMENT, and none is freed. Also
 * GDN_INVALID_ARGUMENT for a pool over the caller's memory. */
GDN_API int gdn_slots_free(gdn_pool* pool, int32_t count, const int32_t* slots);
/* Sets the states of distinct slots to zero, with 0 tokens seen. */
GDN_API int gdn_slots_zero(gdn_pool* pool, int32_t count, const int32_t* slots, void* stream);
/* Forks states: copies the state of from[i] to to[i]. `from` may name a slot twice. The slots of `to` must be distinct,
 * and none of them may be in `from`. */
GDN_API int gdn_slots_copy(gdn_pool* pool, int32_t count, const int32_t* from, const int32_t* to, void* stream);
/* Sets *tokens to the number of tokens that a slot's state has seen, issued steps included. */
GDN_API int gdn_slot_tokens(gdn_pool* pool, int32_t slot, int64_t* tokens);

/* ---- Steps. */

/* A dense tensor, row-major (the last dimension is contiguous). data must be aligned to an element. */
typedef struct gdn_tensor {
  void* data;       /* inputs are only read; may be NULL if the step has no tokens */
  int32_t dtype;    /* a gdn_dtype */
  int32_t rank;     /* number of dimensions */
  int64_t shape[4]; /* the first `rank` count */
} gdn_tensor;

/* Sequences of different lengths, end to end: sequence i is the rows [cu_seqlens[i], cu_seqlens[i + 1]) of a tensor. */
typedef struct gdn_batch {
  int32_t sequences;
  const int32_t* cu_seqlens; /* [sequences + 1] host memory, from 0 to the tensors' tokens, never decreasing */
  const int32_t* slots;      /* [sequences] host memory, distinct; a negative slot is padding, its outputs are zero */
} gdn_batch;

/* The delta rule. For each value head with state S [K, V], and for each token in order:
 *   S <- exp(g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q
 * A pool with a decay per channel uses diag(exp(g)) S in place of exp(g) S.
 * Tensors may have different dtypes. All arithmetic is float32. */
typedef struct gdn_delta_rule_step {
  size_t struct_size;
  gdn_batch batch;
  gdn_tensor q;          /* [tokens, H, K] */
  gdn_tensor k;          /* [tokens, H, K] */
  gdn_tensor v;          /* [tokens, HV, V] */
  gdn_tensor g;          /* [tokens, HV], or [tokens, HV, K] for a decay per channel: log decay, <= 0 */
  gdn_tensor beta;       /* [tokens, HV] write strength, in [0, 2] */
  gdn_tensor output;     /* [tokens, HV, V] o */
  float scale;           /* multiplies q; 0: K^-0.5 */
  int32_t use_qk_l2norm; /* not 0: q and k are divided by their l2 norms first (1e-6 inside the root) */
  void* stream;
  float max_beta; /* upper bound of beta; 0: 2. A prefill is computed in chunks only if max_beta is 1 or less */
} gdn_delta_rule_step;

/* For prompts: any number of tokens for each sequence. From 32 tokens on they are computed in chunks, if max_beta is 1
 * or less. Any split into calls gives the results of one call within 1e-5. A sequence's bits depend only on its own
 * calls, never on other sequences in the batch. */
GDN_API int gdn_prefill(gdn_pool* pool, const gdn_delta_rule_step* step);
/* For decoding: 0 to max_decode_tokens tokens for each sequence; more are refused (GDN_INVALID_ARGUMENT). The update of
 * the state is deferred, which is faster than a prefill of as many tokens. T tokens in one call give the bits of T
 * calls. */
GDN_API int gdn_decode(gdn_pool* pool, const gdn_delta_rule_step* step);

/* A Gated DeltaNet layer without its projections: the delta rule with its convolution, gates and norm. The weights
 * are float32 in device memory. C = 2 H K + HV V channels, in the order q, k, v. */
typedef struct gdn_mixer_weights {
  gdn_tensor conv_weight; /* [C, W]; tap W - 1 meets the current token */
  gdn_tensor a_log;       /* [HV] */
  gdn_tensor dt_bias;     /* [HV] */
  gdn_tensor norm_weight; /* [V] */
  float norm_epsilon;     /* 0: 1e-6 */
} gdn_mixer_weights;

/* For a pool with a convolution. The convolution's last columns are part of the state.
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

/* Work as gdn_prefill and gdn_decode. A pool with a convolution takes only these; a pool without takes only those. */
GDN_API int gdn_mixer_prefill(gdn_pool* pool, const gdn_mixer_step* step);
GDN_API int gdn_mixer_decode(gdn_pool* pool, const gdn_mixer_step* step);

/* ---- States as files and as matrices. */

/* Makes a state file (safetensors; docs/reference/state-files.md), whose layer i is the state of slots[i]; count is 1
 * or more. `gdnctl state import` accepts it. A session that continues from the file has the same bits. Free *file with
 * gdn_bytes_free. */
GDN_API int gdn_state_export(gdn_pool* pool, int32_t count, const int32_t* slots, void* stream, gdn_bytes** file);
/* The bytes and their number; valid until gdn_bytes_free. `bytes` must not be NULL. */
GDN_API const void* gdn_bytes_data(const gdn_bytes* bytes);
GDN_API size_t gdn_bytes_size(const gdn_bytes* bytes);
GDN_API void gdn_bytes_free(gdn_bytes* bytes); /* NULL is ignored */
/* Copies the states of a file with `count` layers, in order, into distinct slots. `bytes` is the file's size. All
 * states are verified before any is written. GDN_DATA_LOSS if the file is damaged. GDN_FAILED_PRECONDITION if it has
 * another number of layers, other dimensions, another state dtype, or states of the other kind of steps (with or
 * without a convolution). The same for a draft that waits to be accepted or dropped. */
GDN_API int gdn_state_import(gdn_pool* pool, int32_t count, const int32_t* slots, const void* file, size_t bytes,
                             void* stream);

/* Writes S, float32 [HV, K, V], after all tokens seen so far, to `matrices`. The state is not changed. */
GDN_API int gdn_state_get(gdn_pool* pool, int32_t slot, float* matrices, void* stream);
/* Replaces S by `matrices`, [HV, K, V]. The slot then counts as having seen `tokens` tokens (0 or more), with an empty
 * log. A convolution's columns become zero. */
GDN_API int gdn_state_set(gdn_pool* pool, int32_t slot, const float* matrices, int64_t tokens, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* GDN_H_ */
