// Kills a server at random moments while sessions are stepped, and compares every answer with an undisturbed server's.
//
//   crash_soak --server=build/cpu/bin/gdn_server --model=tests/golden/qwen3_next_1 --rounds=200 --seed=1
//
// Two servers of the same program run: one is never disturbed; the other has a disk and a checkpoint policy, is killed
// (SIGKILL) once a round and started again. Each session, in a thread of its own, takes every step on both, through
// DurableSession: prefills, decodes and drafts of all layers, made from the seed. Beside them some sessions of each
// kind are stepped together, through DurableBatch on the server that is killed, and one by one on the other. Some steps
// are Steps of mixed rows; the undisturbed server then gets AcceptTokens, Prefill and Decode instead. Exit code 1
// where an answer differs by a bit, a step was applied other than once, or a kill cost a layer more tokens than the
// checkpoint interval. With --transport=ring, steps reach the server that is killed through a ring (Client::OpenRing),
// which every kill ends; the exit code is 1, too, if the client does not open another one.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/durable_batch.h"
#include "client/cpp/durable_session.h"
#include "client/cpp/step_rows.h"
#include "client/cpp/tensor_codec.h"
#include "tests/soak/mixed_rows.h"
#include "tests/soak/run_in_folder.h"
#include "tests/soak/soak_state.h"
#include "tests/support/random.h"
#include "tools/common/restartable_server.h"

ABSL_FLAG(std::string, server, "", "The gdn_server program.");
ABSL_FLAG(std::string, model, "", "A checkpoint's folder; empty: operator sessions only.");
ABSL_FLAG(int32_t, rounds, 5, "How often the server is killed.");
ABSL_FLAG(uint64_t, seed, 1, "Of inputs, steps and moments.");
ABSL_FLAG(int32_t, sessions, 3, "Operator sessions; with --model, as many of the model.");
ABSL_FLAG(int32_t, batched, 3, "More sessions of each kind, which are decoded in one call; 0: none.");
ABSL_FLAG(int32_t, interval, 16, "Tokens between two checkpoints (--checkpoint-every-tokens).");
ABSL_FLAG(int32_t, longest_life_ms, 400, "A server lives at most so long before it is killed.");
ABSL_FLAG(std::string, transport, "messages", "How steps reach the server that is killed: messages or ring.");
ABSL_FLAG(std::vector<std::string>, server_flags, {}, "More flags of both servers, such as --backend=gpu.");

namespace gdn {
namespace {

constexpr int32_t kKeyHeads = 2, kValueHeads = 4, kKeyDim = 16, kValueDim = 24, kOperatorLayers = 3;
constexpr int kMaxPrefill = 12;  // with the interval, what a kill may cost: a prefill is not cut by a checkpoint
constexpr int kMaxDraft = 4;

// The sessions that are stepped together, and the layers and hidden size of their inputs.
struct Plan {
  std::vector<v1::CreateSessionRequest> create;  // one: stepped alone
  std::vector<int32_t> layers;
  int64_t hidden_size = 0;  // 0: an operator session
};

v1::Tensor Normal(const std::vector<int64_t>& shape, Random& random) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return *MakeTensor(random.Normal(count), shape);
}

v1::Tensor Uniform(const std::vector<int64_t>& shape, float low, float high, Random& random) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return *MakeTensor(random.Uniform(count, low, high), shape);
}

// `leading` is [T] of a prefill, [B, T] of a decode.
template <typename Request>
void SetInput(const Plan& plan, const std::vector<int64_t>& leading, Random& random, Request* request) {
  const auto shape = [&leading](std::initializer_list<int64_t> rest) {
    std::vector<int64_t> all = leading;
    all.insert(all.end(), rest);
    return all;
  };
  if (plan.hidden_size > 0) {
    *request->mutable_hidden_states()->mutable_hidden_states() = Normal(shape({plan.hidden_size}), random);
    return;
  }
  v1::DeltaRuleInput* const input = request->mutable_delta_rule();
  *input->mutable_q() = Normal(shape({kKeyHeads, kKeyDim}), random);
  *input->mutable_k() = Normal(shape({kKeyHeads, kKeyDim}), random);
  *input->mutable_v() = Normal(shape({kValueHeads, kValueDim}), random);
  *input->mutable_g() = Uniform(shape({kValueHeads}), -0.2f, 0.0f, random);
  *input->mutable_beta() = Uniform(shape({kValueHeads}), 0.0f, 1.0f, random);
  input->set_use_qk_l2norm(true);
}

// Data that all sessions share.
struct Soak : SoakState {
  std::atomic<int64_t> steps = 0;
  std::atomic<int64_t> mixed = 0;  // rows of Step among them
  std::atomic<int64_t> mismatches = 0;
};

// The sessions of a plan on both servers.
class Twins {
 public:
  Twins(Soak* soak, Plan plan, uint64_t seed) : soak_(soak), plan_(std::move(plan)), random_(seed) {}

  absl::Status Run(Client& undisturbed, Client& crashing) {
    for (const v1::CreateSessionRequest& create : plan_.create) {
      GDN_ASSIGN_OR_RETURN(auto truth, DurableSession::Create(undisturbed, create));
      GDN_ASSIGN_OR_RETURN(auto tested, DurableSession::Create(crashing, create));
      truth_.push_back(std::move(truth));
      together_.push_back(tested.get());
      tested_.push_back(std::move(tested));
    }
    batch_.emplace(crashing);
    for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Prefill(layer));
    while (!soak_->over) {
      const int kind = random_.NextInt(0, 19);
      if (kind == 0) {
        for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Prefill(layer));
      } else if (kind < 5) {
        GDN_RETURN_IF_ERROR(Draft());
      } else if (kind < 9) {
        for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(StepMixed(layer));
      } else {
        for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Decode(layer, {}, false));
      }
    }
    // The last kill may have come after the last step: only a step finds out, and recovers.
    for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Decode(layer, {}, false));
    for (size_t row = 0; row < tested_.size(); ++row) {
      GDN_ASSIGN_OR_RETURN(const v1::Session found, crashing.GetSession(tested_[row]->name()));
      for (const v1::LayerState& state : found.layers()) {
        if (state.token_count() == truth_[row]->token_count(state.layer())) continue;
        Mismatch(row, StrCat("layer ", state.layer(), " has seen ", state.token_count(),
                             " tokens on the server, expected ", truth_[row]->token_count(state.layer())));
      }
      if (truth_[row]->stats().recoveries != 0) return absl::InternalError("the undisturbed server has lost steps");
    }
    return absl::OkStatus();
  }

  const std::vector<std::unique_ptr<DurableSession>>& tested() const { return tested_; }

 private:
  void Mismatch(size_t row, const std::string& what) {
    ++soak_->mismatches;
    std::cerr << "MISMATCH " << tested_[row]->name() << ": " << what << "\n";
  }

  void Compare(const char* call, int32_t layer, size_t row, std::string_view tested, std::string_view truth) {
    ++soak_->steps;
    const int64_t count = truth_[row]->token_count(layer);
    if (tested != truth) Mismatch(row, StrCat(call, " of layer ", layer, " up to token ", count, " gave other bytes"));
    if (tested_[row]->token_count(layer) != count) {
      Mismatch(row, StrCat("layer ", layer, " is at token ", tested_[row]->token_count(layer), ", expected ", count));
    }
  }

  absl::Status Prefill(int32_t layer) {
    for (size_t row = 0; row < tested_.size(); ++row) {
      v1::PrefillRequest request;
      request.set_layer(layer);
      SetInput(plan_, {random_.NextInt(0, kMaxPrefill)}, random_, &request);
      GDN_ASSIGN_OR_RETURN(const v1::PrefillResponse truth, truth_[row]->Prefill(request));
      GDN_ASSIGN_OR_RETURN(const v1::PrefillResponse tested, tested_[row]->Prefill(request));
      Compare("Prefill", layer, row, tested.output().data(), truth.output().data());
    }
    return absl::OkStatus();
  }

  // Tokens of each row; none: one.
  absl::Status Decode(int32_t layer, const std::vector<int32_t>& lengths, bool draft) {
    const size_t rows = tested_.size();
    v1::DecodeRequest request;
    request.set_layer(layer);
    request.set_draft(draft);
    request.mutable_lengths()->Add(lengths.begin(), lengths.end());
    const int32_t longest = lengths.empty() ? 1 : *std::max_element(lengths.begin(), lengths.end());
    SetInput(plan_, {static_cast<int64_t>(rows), longest}, random_, &request);
    GDN_ASSIGN_OR_RETURN(const std::vector<v1::DecodeRequest> parts, CutRows(request, static_cast<int>(rows)));
    std::vector<std::string> truth;
    for (size_t row = 0; row < rows; ++row) {
      GDN_ASSIGN_OR_RETURN(v1::DecodeResponse reply, truth_[row]->Decode(parts[row]));
      truth.push_back(std::move(*reply.mutable_output()->mutable_data()));
    }
    const char* const call = draft ? "a draft" : "Decode";
    if (rows == 1) {
      GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse tested, tested_[0]->Decode(request));
      Compare(call, layer, 0, tested.output().data(), truth[0]);
      return absl::OkStatus();
    }
    GDN_ASSIGN_OR_RETURN(const DurableBatch::Reply tested, batch_->Decode(together_, std::move(request)));
    const std::string_view output = tested.output.data();
    const size_t bytes = output.size() / rows;
    for (size_t row = 0; row < rows; ++row) {
      GDN_RETURN_IF_ERROR(tested.rows[row]);
      Compare(call, layer, row, output.substr(row * bytes, bytes), truth[row]);
    }
    return absl::OkStatus();
  }

  absl::Status Draft() {
    std::vector<int32_t> lengths, accepted;
    for (size_t row = 0; row < tested_.size(); ++row) {
      lengths.push_back(random_.NextInt(1, kMaxDraft));
      accepted.push_back(random_.NextInt(0, lengths.back()));
    }
    for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Decode(layer, lengths, true));
    for (size_t row = 0; row < tested_.size(); ++row) {
      GDN_RETURN_IF_ERROR(truth_[row]->AcceptTokens(accepted[row]).status());
    }
    if (tested_.size() == 1) return tested_[0]->AcceptTokens(accepted[0]).status();
    GDN_ASSIGN_OR_RETURN(const auto counts, batch_->AcceptTokens(together_, accepted));
    for (const auto& row : counts) GDN_RETURN_IF_ERROR(row.status());
    return absl::OkStatus();
  }

  // Steps of one layer by Step, whose rows are decodes, drafts and prefills and accept the drafts of the step before.
  // The last one leaves no draft.
  absl::Status StepMixed(int32_t layer) {
    constexpr int kSteps = 3;
    enum Kind { kDecode, kPrefill, kDraft };
    std::vector<int> drafts(tested_.size(), 0);  // tokens of each session's draft
    for (int step = 0; step < kSteps; ++step) {
      std::vector<MixedRow> rows;
      std::vector<std::string> truth;
      for (size_t row = 0; row < tested_.size(); ++row) {
        const int kind = random_.NextInt(kDecode, step < kSteps - 1 ? kDraft : kPrefill);
        MixedRow& drawn = rows.emplace_back(kind == kPrefill ? DrawPrefill(layer) : DrawDecode(layer, kind == kDraft));
        if (drafts[row] > 0) drawn.accept_before = {.first_tokens = random_.NextInt(0, drafts[row])};
        drafts[row] = kind == kDraft ? static_cast<int>(StepTokens(drawn.step)) : 0;
        GDN_ASSIGN_OR_RETURN(truth.emplace_back(), StepApart(*truth_[row], drawn));
      }
      GDN_ASSIGN_OR_RETURN(const std::vector<std::string> tested, StepTogether(rows));
      for (size_t row = 0; row < rows.size(); ++row) Compare("Step", layer, row, tested[row], truth[row]);
      soak_->mixed += static_cast<int64_t>(rows.size());
    }
    return absl::OkStatus();
  }

  MixedRow DrawPrefill(int32_t layer) {
    v1::PrefillRequest request;
    request.set_layer(layer);
    SetInput(plan_, {random_.NextInt(0, kMaxPrefill)}, random_, &request);
    return {.step = std::move(request)};
  }

  MixedRow DrawDecode(int32_t layer, bool draft) {
    v1::DecodeRequest request;
    request.set_layer(layer);
    request.set_draft(draft);
    SetInput(plan_, {1, random_.NextInt(draft ? 1 : 0, kMaxDraft)}, random_, &request);
    return {.step = std::move(request)};
  }

  // Makes the row's calls by the other methods, and returns the output.
  static absl::StatusOr<std::string> StepApart(DurableSession& session, const MixedRow& row) {
    if (row.accept_before.has_value()) {
      GDN_RETURN_IF_ERROR(session.AcceptTokens(row.accept_before->first_tokens).status());
    }
    if (StepTokens(row.step) == 0) return std::string();
    if (const auto* const prefill = std::get_if<v1::PrefillRequest>(&row.step); prefill != nullptr) {
      GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply, session.Prefill(*prefill));
      return std::move(*reply.mutable_output()->mutable_data());
    }
    GDN_ASSIGN_OR_RETURN(v1::DecodeResponse reply, session.Decode(std::get<v1::DecodeRequest>(row.step)));
    return std::move(*reply.mutable_output()->mutable_data());
  }

  // Sends the rows in one Step, and returns their outputs.
  absl::StatusOr<std::vector<std::string>> StepTogether(const std::vector<MixedRow>& rows) {
    if (rows.size() == 1) {
      GDN_ASSIGN_OR_RETURN(const v1::StepResponse reply, tested_[0]->Step(MixedStepOf(rows)));
      return OutputsOf(rows, reply.output());
    }
    GDN_ASSIGN_OR_RETURN(const DurableBatch::Reply reply, batch_->Step(together_, MixedStepOf(rows)));
    for (const absl::Status& row : reply.rows) GDN_RETURN_IF_ERROR(row);
    return OutputsOf(rows, reply.output);
  }

  Soak* const soak_;
  const Plan plan_;
  Random random_;
  std::vector<std::unique_ptr<DurableSession>> truth_;
  std::vector<std::unique_ptr<DurableSession>> tested_;
  std::vector<DurableSession*> together_;  // those of tested_
  std::optional<DurableBatch> batch_;
};

// Sessions "NAME-0", "NAME-1", ..: each a plan of its own, and some more that are one plan.
void AddPlans(const Plan& kind, const v1::CreateSessionRequest& create, const std::string& name,
              std::vector<Plan>& plans) {
  const int alone = absl::GetFlag(FLAGS_sessions);
  const int batched = absl::GetFlag(FLAGS_batched);
  for (int i = 0; i < alone + batched; ++i) {
    if (i <= alone) plans.push_back(kind);
    plans.back().create.push_back(create);
    plans.back().create.back().set_session_id(StrCat(name, "-", i));
  }
}

absl::StatusOr<std::vector<Plan>> MakePlans(Client& client) {
  std::vector<Plan> plans;
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Model> models, client.ListModels());
  Plan of_operator;
  v1::CreateSessionRequest create;
  v1::OperatorSpec* const spec = create.mutable_operator_();
  spec->set_key_heads(kKeyHeads);
  spec->set_value_heads(kValueHeads);
  spec->set_key_dim(kKeyDim);
  spec->set_value_dim(kValueDim);
  spec->set_layer_count(kOperatorLayers);
  for (int32_t layer = 0; layer < kOperatorLayers; ++layer) of_operator.layers.push_back(layer);
  AddPlans(of_operator, create, "operator", plans);
  for (const v1::Model& model : models) {
    Plan of_model;
    of_model.layers.assign(model.gdn_layers().begin(), model.gdn_layers().end());
    of_model.hidden_size = model.dims().hidden_size();
    create.set_model(model.name());
    AddPlans(of_model, create, "model", plans);
  }
  return plans;
}

// Waits until steps go through a ring again, ten seconds at most.
void AwaitRing(const Client& client, const Soak& soak) {
  for (int i = 0; i < 10'000 && !client.UsesRing() && !soak.over; ++i) absl::SleepFor(absl::Milliseconds(1));
}

absl::Status RunSoak(const std::string& folder) {
  const int interval = absl::GetFlag(FLAGS_interval);
  const int rounds = absl::GetFlag(FLAGS_rounds);
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  std::vector<std::string> flags = absl::GetFlag(FLAGS_server_flags);
  flags.push_back("--threads=1");
  flags.push_back("--device-state-bytes=256MiB");
  flags.push_back(StrCat("--max-draft=", 2 * kMaxDraft));
  if (!absl::GetFlag(FLAGS_model).empty()) flags.push_back(StrCat("--model=golden=", absl::GetFlag(FLAGS_model)));
  std::vector<std::string> durable = flags;
  durable.push_back(StrCat("--disk-dir=", folder, "/disk"));
  durable.push_back("--disk-high-watermark=100");  // however full this disk is
  durable.push_back(StrCat("--checkpoint-every-tokens=", interval));
  std::filesystem::create_directory(folder + "/disk");

  const std::string program = absl::GetFlag(FLAGS_server);
  RestartableServer undisturbed(program, flags, folder, "undisturbed");
  RestartableServer crashing(program, durable, folder, "crashing");
  GDN_RETURN_IF_ERROR(undisturbed.Start());
  GDN_RETURN_IF_ERROR(crashing.Start());
  const std::unique_ptr<Client> truth = Client::Connect(undisturbed.target());
  const std::unique_ptr<Client> tested = Client::Connect(crashing.target());
  const bool by_ring = absl::GetFlag(FLAGS_transport) == "ring";
  if (by_ring) GDN_RETURN_IF_ERROR(tested->OpenRing());
  GDN_ASSIGN_OR_RETURN(std::vector<Plan> plans, MakePlans(*truth));

  Soak soak;
  std::vector<std::unique_ptr<Twins>> twins;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < plans.size(); ++i) {
    twins.push_back(std::make_unique<Twins>(&soak, std::move(plans[i]), seed * 1000 + i));
    threads.emplace_back([&soak, &truth, &tested, some = twins.back().get()] {
      if (absl::Status status = some->Run(*truth, *tested); !status.ok()) soak.Fail(status);
    });
  }
  Random random(seed);
  int kills = 0, rings_killed = 0;
  while (kills < rounds && !soak.over) {
    if (by_ring) AwaitRing(*tested, soak);
    absl::SleepFor(absl::Microseconds(random.NextInt(0, 1000 * absl::GetFlag(FLAGS_longest_life_ms))));
    if (tested->UsesRing()) ++rings_killed;
    crashing.Kill();
    ++kills;
    if (const absl::Status status = crashing.Start(); !status.ok()) soak.Fail(status);
  }
  // The last kill is answered, too: every session takes some steps more.
  const int64_t enough = soak.steps + 20 * static_cast<int64_t>(twins.size());
  const absl::Time deadline = absl::Now() + absl::Minutes(5);
  while (soak.steps < enough && !soak.over && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  soak.over = true;
  for (std::thread& thread : threads) thread.join();

  DurableSessionStats sum;
  size_t sessions = 0, batched = 0;
  for (const auto& some : twins) {
    sessions += some->tested().size();
    batched += some->tested().size() > 1 ? some->tested().size() : 0;
    for (const auto& session : some->tested()) {
      const DurableSessionStats& stats = session->stats();
      sum.retries += stats.retries;
      sum.recoveries += stats.recoveries;
      sum.recreations += stats.recreations;
      sum.replayed_steps += stats.replayed_steps;
      sum.replayed_tokens += stats.replayed_tokens;
      sum.max_lost_tokens = std::max(sum.max_lost_tokens, stats.max_lost_tokens);
    }
  }
  absl::PrintF(
      "crash_soak seed %d: %d of %d kills, %d sessions (%d of them in batches), %d steps compared (%d of them "
      "rows of Step), %d recoveries (%d from nothing), %d steps and %d tokens replayed, at most %d tokens of a layer "
      "lost by a kill (interval %d), a ring open at %d kills, %d mismatches\n",
      seed, kills, rounds, sessions, batched, soak.steps.load(), soak.mixed.load(), sum.recoveries, sum.recreations,
      sum.replayed_steps, sum.replayed_tokens, sum.max_lost_tokens, interval, rings_killed, soak.mismatches.load());
  GDN_RETURN_IF_ERROR(soak.status());
  if (soak.mismatches != 0) return absl::DataLossError("answers differ from the undisturbed server's");
  if (sum.max_lost_tokens > interval) return absl::DataLossError("a kill cost more than the checkpoint interval");
  if (rounds > 0 && sum.recoveries == 0) return absl::InternalError("no kill cost anything, so nothing was tested");
  if (by_ring && rings_killed < rounds) return absl::InternalError("the client did not open a ring after a kill");
  return absl::OkStatus();
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return gdn::RunInFolder("crash_soak", gdn::RunSoak);
}
