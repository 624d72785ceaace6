// Suite "llama": the shapes of llama.cpp's test-backend-ops cases for GATED_DELTA_NET, with a gate a head or a channel.
//
// The adapter between its operator and ours, for S = K = V and r = HV / H:
//   - its value head h reads key head h % H (tiled), ours h / r (grouped): its head j H + i is our head i r + j, in v,
//     g, beta, the state and the output;
//   - its states are stored transposed, ours are [K, V];
//   - q, k, v may be permuted views ([H, T, S] in memory), ours are dense token rows: gathered on the way;
//   - it scales q by S^-0.5 itself, ours arrives scaled;
//   - it returns the states after the last min(T, N) tokens, newest first; ours gives the state after a call, so the
//     call is cut before those tokens.
// What its answer must be is computed here in its own order, in double.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/shape_budget.h"

namespace gdn::parity {
namespace {

// In its order of arguments.
struct LlamaShape {
  int32_t heads, side;  // H, S
  int32_t tokens, sequences;
  int32_t repeat = 1;  // r
  bool permuted = false;
  bool per_channel_gate = false;
  int32_t states = 1;  // N
};

// Its tensors, outermost dimension first; q, k, v are [B, T, heads, S], or [B, heads, T, S] where permuted.
struct LlamaTensors {
  std::vector<float> q, k, v;
  std::vector<float> g;      // [B, T, HV], or [B, T, HV, S]
  std::vector<float> beta;   // [B, T, HV]
  std::vector<float> state;  // [B, HV, V, K]
};

int64_t ValueHeads(const LlamaShape& s) { return int64_t{s.heads} * s.repeat; }

// Its number of our value head `ours`.
int64_t TheirHead(const LlamaShape& s, int64_t ours) { return ours % s.repeat * s.heads + ours / s.repeat; }

// Where element 0 of a q, k or v row is.
int64_t RowOffset(const LlamaShape& s, int64_t heads, int64_t sequence, int64_t token, int64_t head) {
  const int64_t row =
      s.permuted ? (sequence * heads + head) * s.tokens + token : (sequence * s.tokens + token) * heads + head;
  return row * s.side;
}

// Its log decays of a token and head.
int64_t Gates(const LlamaShape& s) { return s.per_channel_gate ? s.side : 1; }

int64_t StatesKept(const LlamaShape& s) { return std::min(s.tokens, s.states); }

LlamaTensors RandomTensors(const LlamaShape& s, float strongest, RandomTensor& random) {
  const int64_t rows = int64_t{s.sequences} * s.tokens;
  LlamaTensors t;
  t.q = random.Directions(rows * s.heads, s.side, 1.0f);
  t.k = random.Directions(rows * s.heads, s.side, 1.0f);
  t.v = random.Normal(rows * ValueHeads(s) * s.side);
  t.g = random.Uniform(rows * ValueHeads(s) * Gates(s), strongest, -1e-4f);
  t.beta = random.Uniform(rows * ValueHeads(s), 0.0f, 1.0f);
  t.state = random.Normal(int64_t{s.sequences} * ValueHeads(s) * s.side * s.side, 0.5f);
  return t;
}

// Outputs [B, T, HV, S]; states [N, B, HV, V, K], newest first.
DeltaRuleResult Expected(const LlamaShape& s, const LlamaTensors& t) {
  const int64_t side = s.side;
  const int64_t heads = ValueHeads(s);
  const double scale = 1.0 / std::sqrt(static_cast<double>(side));
  DeltaRuleResult result;
  result.output.resize(int64_t{s.sequences} * s.tokens * heads * side);
  const int64_t state_size = int64_t{s.sequences} * heads * side * side;
  result.states.resize(StatesKept(s) * state_size);
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = (b * heads + head) * side * side;
      std::vector<double> state(t.state.begin() + at, t.state.begin() + at + side * side);  // [V][K]
      for (int64_t token = 0; token < s.tokens; ++token) {
        const float* q = &t.q[RowOffset(s, s.heads, b, token, head % s.heads)];
        const float* k = &t.k[RowOffset(s, s.heads, b, token, head % s.heads)];
        const float* v = &t.v[RowOffset(s, heads, b, token, head)];
        const int64_t gate = (b * s.tokens + token) * heads + head;
        const float* g = &t.g[gate * Gates(s)];
        for (int64_t column = 0; column < side; ++column) {
          double* row = &state[column * side];
          double seen = 0.0;
          for (int64_t f = 0; f < side; ++f) seen += (row[f] *= std::exp(double{g[f % Gates(s)]})) * k[f];
          const double u = t.beta[gate] * (v[column] - seen);
          double out = 0.0;
          for (int64_t f = 0; f < side; ++f) out += (row[f] += u * k[f]) * q[f];
          result.output[gate * side + column] = static_cast<float>(out * scale);
        }
        const int64_t back = s.tokens - 1 - token;
        if (back < StatesKept(s)) {
          std::copy(state.begin(), state.end(), result.states.begin() + back * state_size + at);
        }
      }
    }
  }
  return result;
}

// Tokens [begin, end) of every sequence as our problem, with these states (ours).
DeltaRuleProblem ToProblem(const LlamaShape& s, const LlamaTensors& t, int32_t begin, int32_t end,
                           const std::vector<float>& initial) {
  const int64_t heads = ValueHeads(s);
  const LayerDims dims = Dims(s.heads, static_cast<int32_t>(heads), s.side, s.side);
  DeltaRuleProblem p{.dims = s.per_channel_gate ? ByChannel(dims) : dims,
                     .lengths = std::vector<int32_t>(s.sequences, end - begin),
                     .initial = initial};
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.side));
  const auto append = [&s](std::vector<float>& to, const std::vector<float>& from, int64_t offset, float factor) {
    for (int32_t f = 0; f < s.side; ++f) to.push_back(from[offset + f] * factor);
  };
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = 0; head < s.heads; ++head) {
        append(p.q, t.q, RowOffset(s, s.heads, b, token, head), scale);
        append(p.k, t.k, RowOffset(s, s.heads, b, token, head), 1.0f);
      }
      for (int64_t ours = 0; ours < heads; ++ours) {
        const int64_t gate = (b * s.tokens + token) * heads + TheirHead(s, ours);
        append(p.v, t.v, RowOffset(s, heads, b, token, TheirHead(s, ours)), 1.0f);
        p.g.insert(p.g.end(), t.g.begin() + gate * Gates(s), t.g.begin() + (gate + 1) * Gates(s));
        p.beta.push_back(t.beta[gate]);
      }
    }
  }
  return p;
}

// [B, HV, K, V] in our head order from [B, HV, V, K] in theirs, or back.
std::vector<float> TurnStates(const LlamaShape& s, const std::vector<float>& from, bool to_ours) {
  const int64_t heads = ValueHeads(s);
  const int64_t side = s.side;
  std::vector<float> to(from.size());
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t ours = 0; ours < heads; ++ours) {
      const int64_t source = (b * heads + (to_ours ? TheirHead(s, ours) : ours)) * side * side;
      const int64_t target = (b * heads + (to_ours ? ours : TheirHead(s, ours))) * side * side;
      for (int64_t i = 0; i < side; ++i) {
        for (int64_t j = 0; j < side; ++j) to[target + j * side + i] = from[source + i * side + j];
      }
    }
  }
  return to;
}

// Rows [begin, end) of the output, in their head order.
void PlaceOutput(const LlamaShape& s, const std::vector<float>& ours, int64_t begin, int64_t end,
                 std::vector<float>& output) {
  const int64_t heads = ValueHeads(s);
  auto row = ours.begin();
  for (int64_t b = 0; b < s.sequences; ++b) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = 0; head < heads; ++head, row += s.side) {
        std::copy_n(row, s.side, output.begin() + ((b * s.tokens + token) * heads + TheirHead(s, head)) * s.side);
      }
    }
  }
}

CaseResult RunGatedDeltaNet(const LlamaShape& s, DeltaRuleForm form, float strongest, Backend& backend,
                            RandomTensor& random) {
  const LlamaTensors t = RandomTensors(s, strongest, random);
  const DeltaRuleResult expected = Expected(s, t);
  DeltaRuleResult actual;
  actual.output.resize(expected.output.size());
  std::vector<float> states = TurnStates(s, t.state, /*to_ours=*/true);
  const int32_t kept = static_cast<int32_t>(StatesKept(s));
  for (int32_t begin = 0; begin < s.tokens;) {
    // The first call ends at the oldest state that is wanted; then a token a call.
    const int32_t end = begin == 0 ? s.tokens - kept + 1 : begin + 1;
    const DeltaRuleProblem problem = ToProblem(s, t, begin, end, states);
    GDN_ASSIGN_OR_RETURN(const DeltaRuleResult result, RunDeltaRule(form, problem, backend));
    GDN_RETURN_IF_ERROR(DumpDeltaRule(problem, result));
    PlaceOutput(s, result.output, begin, end, actual.output);
    states = result.states;
    const std::vector<float> snapshot = TurnStates(s, states, /*to_ours=*/false);
    actual.states.insert(actual.states.begin(), snapshot.begin(), snapshot.end());  // the newest comes first
    begin = end;
  }
  return CompareResults(actual, expected);
}

std::string ShapeName(const LlamaShape& s) {
  return absl::StrCat("H=", s.heads, " S=", s.side, " T=", s.tokens, " B=", s.sequences, " r=", s.repeat,
                      s.permuted ? " permuted" : "", s.states > 1 ? absl::StrCat(" states=", s.states) : "");
}

void AddGatedDeltaNet(const LlamaShape& s, std::vector<ParityCase>& cases) {
  // The form that a call of so many tokens takes, beside the one that takes any.
  using Form = DeltaRuleForm;
  const Form usual = s.tokens == 1 ? Form::kDecode : s.tokens <= 8 ? Form::kDraft : Form::kChunk;
  const auto add = [&cases, &s, usual](const LlamaShape& shape, const std::string& note, bool large) {
    for (const Form form : {Form::kScan, usual}) {
      for (const float strongest : {-20.0f, -0.1f}) {  // its own range, and one that remembers
        cases.push_back({"llama",
                         absl::StrCat("gated_delta_net_", s.per_channel_gate ? "kda_" : "", DeltaRuleFormName(form)),
                         absl::StrCat(ShapeName(shape), note, " g>=", strongest), kPipelineTolerance,
                         std::bind_front(RunGatedDeltaNet, shape, form, strongest)});
        cases.back().large = large;
        cases.back().by_channel = s.per_channel_gate;
      }
    }
  };
  LayerDims dims = Dims(s.heads, s.heads * s.repeat, s.side, s.side);
  std::vector<int32_t> lengths(s.sequences, s.tokens);
  const bool large = StateUpdates(dims, lengths) > kHostBudget;
  add(s, "", large);
  if (!large) return;
  ReduceShape(dims, lengths);
  LlamaShape reduced = s;
  reduced.heads = dims.key_heads;
  reduced.tokens = lengths[0];
  add(reduced, absl::StrCat(" (of T=", s.tokens, " H=", s.heads, ")"), false);
}

}  // namespace

void AddDeltaRuleLlamaCases(std::vector<ParityCase>& cases) {
  const LlamaShape shapes[] = {
      {32, 128, 1, 1},
      {32, 16, 1, 1},
      {32, 16, 1, 1, 1, true, true},
      {32, 16, 1, 1, 1, false, true},
      {16, 64, 1, 2},
      {4, 64, 4, 1},
      {4, 64, 4, 2},
      {8, 32, 4, 2, 2},
      {4, 64, 4, 2, 1, true},
      {4, 64, 4, 1, 1, true},
      {4, 64, 1, 1, 1, false, true},
      {4, 64, 1, 2, 1, false, true},
      {4, 16, 1, 2, 1, false, true},
      {4, 32, 4, 1, 1, false, true},
      {4, 64, 4, 2, 1, false, true},
      {8, 32, 4, 2, 2, false, true},
      {4, 64, 4, 2, 1, true, true},
      {4, 16, 4, 2, 1, true, true},
      // Several chunks, and lengths that are no multiple of one.
      {4, 64, 64, 1},
      {4, 64, 127, 1},
      {4, 64, 256, 1},
      {4, 64, 65, 1},
      {4, 64, 100, 1},
      {4, 64, 200, 1},
      {4, 64, 127, 2},
      {4, 64, 64, 1, 1, false, true},
      {4, 64, 33, 1, 1, false, true},
      {4, 64, 100, 1, 1, false, true},
      // The last states: as many as tokens, then fewer.
      {4, 16, 2, 1, 1, false, false, 2},
      {4, 32, 4, 1, 1, false, false, 4},
      {4, 64, 4, 2, 1, false, false, 4},
      {8, 128, 4, 1, 1, false, false, 4},
      {4, 64, 4, 2, 1, false, true, 4},
      {8, 32, 4, 2, 2, false, true, 4},
      {4, 32, 8, 1, 1, false, false, 3},
      {4, 64, 16, 2, 1, false, false, 4},
      // Its performance cases: real models' sizes.
      {16, 64, 1, 1},
      {32, 128, 64, 1},
      {32, 128, 256, 1},
      {32, 128, 512, 1},
      {32, 128, 1024, 1},
      {4, 128, 64, 1},
      {4, 128, 256, 1},
      {4, 128, 512, 1},
      {4, 128, 1024, 1},
  };
  for (const LlamaShape& shape : shapes) AddGatedDeltaNet(shape, cases);
}

}  // namespace gdn::parity
