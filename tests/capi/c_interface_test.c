/* A C program over libgdn: each function of gdn.h, results beside the formula in double, and what wrong calls get. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capi/gdn.h"

enum { kH = 2, kHV = 4, kK = 24, kV = 20, kTokens = 90, kSlots = 4 };
#define KEYS (kH * kK)
#define VALUES (kHV * kV)
#define STATE (kHV * kK * kV)
#define TOLERANCE 5e-6 /* of the norm: the chunked form's, as in gdn_parity */

static int failures = 0;

#define CHECK(condition)                                                                                 \
  do {                                                                                                   \
    if (!(condition)) {                                                                                  \
      printf("%s:%d: %s is not so; last error: %s\n", __FILE__, __LINE__, #condition, gdn_last_error()); \
      ++failures;                                                                                        \
    }                                                                                                    \
  } while (0)
#define CHECK_OK(call) CHECK((call) == GDN_OK)

/* The call fails with this code and reason, and its message has these words. */
static void refused(int line, int code, int expected, const char* reason, const char* words) {
  if (code == expected && strcmp(gdn_last_reason(), reason) == 0 && strstr(gdn_last_error(), words) != NULL) return;
  printf("line %d: code %d, reason %s: %s\n  expected %d, %s, \"%s\"\n", line, code, gdn_last_reason(),
         gdn_last_error(), expected, reason, words);
  ++failures;
}
#define REFUSED(call, code, reason, words) refused(__LINE__, (call), (code), (reason), (words))

static float q[kTokens * KEYS], k[kTokens * KEYS], v[kTokens * VALUES], g[kTokens * kHV], beta[kTokens * kHV];
static double expected[kTokens * VALUES], state[STATE];

static float uniform(float low, float high) {
  static uint32_t seed = 12345;
  seed = seed * 1664525u + 1013904223u;
  return low + (high - low) * (float)(seed >> 8) / 16777216.0f;
}

static void fill(float* x, int count, float low, float high) {
  int i;
  for (i = 0; i < count; ++i) x[i] = uniform(low, high);
}

/* All tokens, from a fresh state. */
static void reference(void) {
  int t, h, i, j;
  memset(state, 0, sizeof(state));
  for (t = 0; t < kTokens; ++t) {
    for (h = 0; h < kHV; ++h) {
      const float* key = k + t * KEYS + h / (kHV / kH) * kK;
      const float* query = q + t * KEYS + h / (kHV / kH) * kK;
      double* s = state + h * kK * kV;
      const double decay = exp((double)g[t * kHV + h]);
      for (j = 0; j < kV; ++j) {
        double predicted = 0, u, output = 0;
        for (i = 0; i < kK; ++i) predicted += (s[i * kV + j] *= decay) * key[i];
        u = beta[t * kHV + h] * (v[t * VALUES + h * kV + j] - predicted);
        for (i = 0; i < kK; ++i) output += (s[i * kV + j] += key[i] * u) * query[i];
        expected[t * VALUES + h * kV + j] = output / sqrt((double)kK);
      }
    }
  }
}

static double distance(const float* actual, const double* from, int count) {
  double difference = 0, norm = 0;
  int i;
  for (i = 0; i < count; ++i) {
    difference += (actual[i] - from[i]) * (actual[i] - from[i]);
    norm += from[i] * from[i];
  }
  return sqrt(difference / norm);
}

static gdn_tensor tensor(float* data, int64_t tokens, int64_t heads, int64_t width) {
  gdn_tensor t;
  memset(&t, 0, sizeof(t));
  t.data = data;
  t.dtype = GDN_F32;
  t.rank = width > 0 ? 3 : 2;
  t.shape[0] = tokens;
  t.shape[1] = heads;
  t.shape[2] = width;
  return t;
}

/* Tokens [first, last) of one sequence. */
static gdn_delta_rule_step make_step(int first, int last, const int32_t* cu_seqlens, const int32_t* slot,
                                     float* output) {
  const int tokens = last - first;
  gdn_delta_rule_step step;
  memset(&step, 0, sizeof(step));
  step.struct_size = sizeof(step);
  step.batch.sequences = 1;
  step.batch.cu_seqlens = cu_seqlens;
  step.batch.slots = slot;
  step.q = tensor(q + first * KEYS, tokens, kH, kK);
  step.k = tensor(k + first * KEYS, tokens, kH, kK);
  step.v = tensor(v + first * VALUES, tokens, kHV, kV);
  step.g = tensor(g + first * kHV, tokens, kHV, 0);
  step.beta = tensor(beta + first * kHV, tokens, kHV, 0);
  step.output = tensor(output + first * VALUES, tokens, kHV, kV);
  return step;
}

static int advance(gdn_pool* pool, int32_t slot, int first, int last, int decode, float* output) {
  int32_t cu_seqlens[2] = {0, 0};
  gdn_delta_rule_step step;
  cu_seqlens[1] = last - first;
  step = make_step(first, last, cu_seqlens, &slot, output);
  return decode ? gdn_decode(pool, &step) : gdn_prefill(pool, &step);
}

static gdn_pool_spec make_spec(void) {
  gdn_pool_spec spec;
  memset(&spec, 0, sizeof(spec));
  spec.struct_size = sizeof(spec);
  spec.key_heads = kH;
  spec.value_heads = kHV;
  spec.key_dim = kK;
  spec.value_dim = kV;
  spec.slots = kSlots;
  return spec;
}

static void test_steps(gdn_context* context) {
  static float output[kTokens * VALUES], forked[kTokens * VALUES], matrices[STATE];
  const gdn_pool_spec spec = make_spec();
  gdn_pool* pool = NULL;
  gdn_bytes* file = NULL;
  int32_t slots[kSlots];
  int64_t tokens = -1;
  int t;
  CHECK_OK(gdn_pool_create(context, &spec, &pool));
  CHECK_OK(gdn_slots_allocate(pool, 3, slots));
  CHECK_OK(advance(pool, slots[0], 0, 40, 0, output));
  for (t = 40; t < 60; ++t) CHECK_OK(advance(pool, slots[0], t, t + 1, 1, output));
  CHECK_OK(gdn_slot_tokens(pool, slots[0], &tokens));
  CHECK(tokens == 60);

  /* A fork, and a state that goes through a file, go on with the same bits. */
  CHECK_OK(gdn_slots_copy(pool, 1, &slots[0], &slots[1], NULL));
  CHECK_OK(gdn_state_export(pool, 1, &slots[0], NULL, &file));
  CHECK_OK(gdn_state_import(pool, 1, &slots[2], gdn_bytes_data(file), gdn_bytes_size(file), NULL));
  CHECK_OK(advance(pool, slots[0], 60, 66, 1, output));
  CHECK_OK(advance(pool, slots[0], 66, kTokens, 0, output));
  for (t = 1; t < 3; ++t) {
    memset(forked, 0, sizeof(forked));
    CHECK_OK(advance(pool, slots[t], 60, 66, 1, forked));
    CHECK_OK(advance(pool, slots[t], 66, kTokens, 0, forked));
    CHECK(memcmp(forked + 60 * VALUES, output + 60 * VALUES, (kTokens - 60) * VALUES * sizeof(float)) == 0);
  }
  CHECK(distance(output, expected, kTokens * VALUES) < TOLERANCE);
  CHECK_OK(gdn_state_get(pool, slots[0], matrices, NULL));
  CHECK(distance(matrices, state, STATE) < TOLERANCE);

  /* A state that is set as matrices is the same one; a zeroed one is fresh. */
  CHECK_OK(gdn_state_set(pool, slots[1], matrices, kTokens, NULL));
  memset(matrices, 0, sizeof(matrices));
  CHECK_OK(gdn_state_get(pool, slots[1], matrices, NULL));
  CHECK(distance(matrices, state, STATE) < TOLERANCE);
  CHECK_OK(gdn_slots_zero(pool, 1, &slots[1], NULL));
  CHECK_OK(gdn_state_get(pool, slots[1], matrices, NULL));
  for (t = 0; t < STATE; ++t) CHECK(matrices[t] == 0.0f);

  /* A prompt whose beta is 1 at most is chunked if the caller says so. */
  {
    static float scanned[kTokens * VALUES], chunked[kTokens * VALUES];
    const int32_t cu_seqlens[2] = {0, kTokens};
    gdn_delta_rule_step step = make_step(0, kTokens, cu_seqlens, &slots[1], scanned);
    CHECK_OK(gdn_prefill(pool, &step));
    step = make_step(0, kTokens, cu_seqlens, &slots[1], chunked);
    step.max_beta = 1.0f;
    CHECK_OK(gdn_slots_zero(pool, 1, &slots[1], NULL));
    CHECK_OK(gdn_prefill(pool, &step));
    CHECK(memcmp(scanned, chunked, sizeof(chunked)) != 0);
    CHECK(distance(scanned, expected, kTokens * VALUES) < TOLERANCE);
    CHECK(distance(chunked, expected, kTokens * VALUES) < TOLERANCE);
    CHECK_OK(gdn_slots_zero(pool, 1, &slots[1], NULL));
  }

  /* Slots. */
  REFUSED(gdn_slots_allocate(pool, 2, slots), GDN_OUT_OF_MEMORY, "STATE_BUDGET_EXHAUSTED",
          "2 slots are asked for and 1");
  CHECK_OK(gdn_slots_free(pool, 2, slots));
  REFUSED(gdn_slots_free(pool, 1, slots), GDN_INVALID_ARGUMENT, "VALUE_OUT_OF_RANGE", "is not in use");
  REFUSED(advance(pool, slots[0], 0, 1, 0, output), GDN_INVALID_ARGUMENT, "VALUE_OUT_OF_RANGE", "is not in use");
  REFUSED(gdn_slots_copy(pool, 1, &slots[2], &slots[2], NULL), GDN_INVALID_ARGUMENT, "DUPLICATE_SESSION", "both");
  CHECK_OK(gdn_slots_allocate(pool, 3, slots));

  /* A file that is damaged, or is for other states, changes nothing. */
  {
    char* damaged = malloc(gdn_bytes_size(file));
    gdn_pool_spec other = make_spec();
    gdn_pool* other_pool = NULL;
    memcpy(damaged, gdn_bytes_data(file), gdn_bytes_size(file));
    damaged[gdn_bytes_size(file) - 9] ^= 1;
    REFUSED(gdn_state_import(pool, 1, &slots[0], damaged, gdn_bytes_size(file), NULL), GDN_DATA_LOSS,
            "INVALID_STATE_FILE", "layer.0");
    REFUSED(gdn_state_import(pool, 2, slots, gdn_bytes_data(file), gdn_bytes_size(file), NULL), GDN_FAILED_PRECONDITION,
            "STATE_MISMATCH", "give a slot for each");
    other.state_dtype = GDN_BF16;
    CHECK_OK(gdn_pool_create(context, &other, &other_pool));
    CHECK_OK(gdn_slots_allocate(other_pool, 1, slots));
    REFUSED(gdn_state_import(other_pool, 1, slots, gdn_bytes_data(file), gdn_bytes_size(file), NULL),
            GDN_FAILED_PRECONDITION, "STATE_MISMATCH", "state_dtype");
    gdn_pool_destroy(other_pool);
    free(damaged);
  }
  gdn_bytes_free(file);
  gdn_pool_destroy(pool);
}

/* Pools over the caller's memory: made anew for each call, the second over a copy of all that the first one left. */
static void test_callers_memory(gdn_context* context) {
  static float first[kTokens * VALUES], second[kTokens * VALUES];
  int64_t token_counts[2][kSlots] = {{0}};
  int32_t log_lengths[2][kSlots] = {{0}};
  gdn_pool_spec spec = make_spec();
  gdn_pool* pool = NULL;
  size_t bytes = 0;
  char* block;
  char* memory[2];
  int32_t slot = 3;
  CHECK_OK(gdn_pool_bytes(&spec, &bytes));
  block = calloc(2, bytes + 64);
  memory[0] = block + (64 - (uintptr_t)block % 64);
  memory[1] = memory[0] + (bytes + 63) / 64 * 64;
  spec.memory = memory[0];
  REFUSED(gdn_pool_create(context, &spec, &pool), GDN_INVALID_ARGUMENT, "INPUT_MISSING", "token_counts is NULL");
  spec.token_counts = token_counts[0];
  spec.log_lengths = log_lengths[0];
  CHECK_OK(gdn_pool_create(context, &spec, &pool));
  CHECK_OK(advance(pool, slot, 0, 70, 0, first));
  CHECK_OK(advance(pool, slot, 70, 75, 1, first));
  REFUSED(gdn_slots_allocate(pool, 1, &slot), GDN_INVALID_ARGUMENT, "INVALID_SPEC", "caller's memory");
  CHECK(token_counts[0][3] == 75 && log_lengths[0][3] == 5 && token_counts[0][0] == 0);
  memcpy(memory[1], memory[0], bytes);
  memcpy(token_counts[1], token_counts[0], sizeof(token_counts[0]));
  memcpy(log_lengths[1], log_lengths[0], sizeof(log_lengths[0]));
  CHECK_OK(advance(pool, slot, 75, kTokens, 0, first));
  gdn_pool_destroy(pool);
  spec.memory = memory[1];
  spec.token_counts = token_counts[1];
  spec.log_lengths = log_lengths[1];
  CHECK_OK(gdn_pool_create(context, &spec, &pool));
  CHECK_OK(advance(pool, slot, 75, kTokens, 0, second));
  gdn_pool_destroy(pool);
  CHECK(memcmp(first + 75 * VALUES, second + 75 * VALUES, (kTokens - 75) * VALUES * sizeof(float)) == 0);
  CHECK(distance(first, expected, kTokens * VALUES) < TOLERANCE);
  spec.memory_bytes = bytes - 1;
  REFUSED(gdn_pool_create(context, &spec, &pool), GDN_INVALID_ARGUMENT, "INVALID_TENSOR_DATA", "expected at least");
  spec.memory_bytes = bytes;
  CHECK_OK(gdn_pool_create(context, &spec, &pool));
  gdn_pool_destroy(pool);
  spec.memory = memory[0] + 4;
  REFUSED(gdn_pool_create(context, &spec, &pool), GDN_INVALID_ARGUMENT, "INVALID_TENSOR_DATA", "not aligned to 64");
  free(block);
}

static void test_refusals(gdn_context* context) {
  static float output[kTokens * VALUES];
  gdn_pool_spec spec = make_spec();
  const int32_t cu_seqlens[2] = {0, 2};
  int32_t slot = 0;
  gdn_pool* pool = NULL;
  gdn_context* other = NULL;
  gdn_delta_rule_step step;
  REFUSED(gdn_context_create(7, 0, 0, &other), GDN_INVALID_ARGUMENT, "VALUE_OUT_OF_RANGE", "expected GDN_CPU");
  REFUSED(gdn_context_create(GDN_CPU, 0, 0, NULL), GDN_INVALID_ARGUMENT, "INPUT_MISSING", "context is NULL");
  if (strcmp(gdn_gpu_name(), "") == 0) {
    REFUSED(gdn_context_create(GDN_GPU, 0, 0, &other), GDN_FAILED_PRECONDITION, "DEVICE_UNSUPPORTED", "no GPU kernels");
  }
  spec.struct_size = 12;
  REFUSED(gdn_pool_create(context, &spec, &pool), GDN_INVALID_ARGUMENT, "INVALID_SPEC", "struct_size is 12; expected");
  spec = make_spec();
  spec.value_heads = 3;
  REFUSED(gdn_pool_create(context, &spec, &pool), GDN_INVALID_ARGUMENT, "INVALID_SPEC", "a multiple of key_heads");
  spec = make_spec();
  spec.state_dtype = GDN_F16;
  REFUSED(gdn_pool_create(context, &spec, &pool), GDN_INVALID_ARGUMENT, "INVALID_SPEC", "state_dtype is 2; expected");
  spec = make_spec();
  CHECK_OK(gdn_pool_create(context, &spec, &pool));
  CHECK_OK(gdn_slots_allocate(pool, 1, &slot));
  step = make_step(0, 2, cu_seqlens, &slot, output);
  step.q.shape[1] = kHV;
  REFUSED(gdn_prefill(pool, &step), GDN_INVALID_ARGUMENT, "INVALID_TENSOR_SHAPE",
          "q is of rank 3, [2, 4, 24]; expected [tokens, H, K], [2, 2, 24]");
  step = make_step(0, 2, cu_seqlens, &slot, output);
  step.beta.dtype = 9;
  REFUSED(gdn_prefill(pool, &step), GDN_INVALID_ARGUMENT, "INVALID_TENSOR_DTYPE", "beta has dtype 9; expected GDN_F32");
  step = make_step(0, 2, cu_seqlens, &slot, output);
  step.v.data = NULL;
  REFUSED(gdn_decode(pool, &step), GDN_INVALID_ARGUMENT, "INPUT_MISSING", "v has data NULL");
  step = make_step(0, 2, cu_seqlens, &slot, output);
  step.output.data = (char*)step.output.data + 1;
  REFUSED(gdn_decode(pool, &step), GDN_INVALID_ARGUMENT, "INVALID_TENSOR_DATA", "output is not aligned");
  step = make_step(0, 2, cu_seqlens, &slot, output);
  step.max_beta = (float)INFINITY;
  REFUSED(gdn_prefill(pool, &step), GDN_INVALID_ARGUMENT, "VALUE_OUT_OF_RANGE", "max_beta is inf");
  step.struct_size = sizeof(step) - 1;
  REFUSED(gdn_prefill(pool, &step), GDN_INVALID_ARGUMENT, "INVALID_SPEC", "struct_size is");
  REFUSED(advance(pool, slot, 0, 9, 1, output), GDN_INVALID_ARGUMENT, "VALUE_OUT_OF_RANGE", "max_decode_tokens");
  REFUSED(advance(pool, kSlots, 0, 1, 1, output), GDN_INVALID_ARGUMENT, "VALUE_OUT_OF_RANGE", "slots[0] is 4");
  gdn_pool_destroy(pool);
}

int main(void) {
  gdn_context* context = NULL;
  CHECK(gdn_abi_version() == GDN_ABI_VERSION);
  CHECK(strchr(gdn_version(), '.') != NULL);
  CHECK(strcmp(gdn_last_error(), "") == 0);
  fill(q, kTokens * KEYS, -1.0f, 1.0f);
  fill(k, kTokens * KEYS, -0.2f, 0.2f);
  fill(v, kTokens * VALUES, -1.0f, 1.0f);
  fill(g, kTokens * kHV, -0.5f, 0.0f);
  fill(beta, kTokens * kHV, 0.0f, 1.0f);
  reference();
  CHECK_OK(gdn_context_create(GDN_CPU, 0, 2, &context));
  if (context == NULL) return 1;
  printf("libgdn %s, %s, %s\n", gdn_version(), gdn_context_device(context), gdn_context_numerics_id(context));
  test_steps(context);
  test_callers_memory(context);
  test_refusals(context);
  CHECK_OK(gdn_context_synchronize(context));
  gdn_context_destroy(context);
  printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
