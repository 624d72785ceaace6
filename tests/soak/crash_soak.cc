// Kills a server at random moments while sessions are stepped, and compares every answer with an undisturbed server's.
//
//   crash_soak --server=build/cpu/bin/gdn_server --model=tests/golden/qwen3_next_1 --rounds=200 --seed=1
//
// Two servers of the same program run: one is never disturbed; the other has a disk and a checkpoint policy, is killed
// (SIGKILL) once a round and started again. Each session, in a thread of its own, takes every step on both, through
// DurableSession: prefills, decodes and drafts of all layers, made from the seed. Exit code 1 where an answer differs
// by a bit, a step was applied other than once, or a kill cost a layer more tokens than the checkpoint interval.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/temporary_folder.h"
#include "client/cpp/durable_session.h"
#include "client/cpp/tensor_codec.h"
#include "tests/soak/server_process.h"
#include "tests/support/random.h"

ABSL_FLAG(std::string, server, "", "The gdn_server program.");
ABSL_FLAG(std::string, model, "", "A checkpoint's folder; empty: operator sessions only.");
ABSL_FLAG(int32_t, rounds, 5, "How often the server is killed.");
ABSL_FLAG(uint64_t, seed, 1, "Of inputs, steps and moments.");
ABSL_FLAG(int32_t, sessions, 3, "Operator sessions; with --model, as many of the model.");
ABSL_FLAG(int32_t, interval, 16, "Tokens between two checkpoints (--checkpoint-every-tokens).");
ABSL_FLAG(int32_t, longest_life_ms, 400, "A server lives at most so long before it is killed.");
ABSL_FLAG(std::vector<std::string>, server_flags, {}, "More flags of both servers, such as --backend=gpu.");

namespace gdn {
namespace {

constexpr int32_t kKeyHeads = 2, kValueHeads = 4, kKeyDim = 16, kValueDim = 24, kOperatorLayers = 3;
constexpr int kMaxPrefill = 12;  // with the interval, what a kill may cost: a prefill is not cut by a checkpoint
constexpr int kMaxDraft = 4;

// What a session is made of, and the inputs that fit it.
struct Plan {
  v1::CreateSessionRequest create;
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

// `leading` is [T] of a prefill, [1, T] of a decode.
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

// What all sessions share.
struct Soak {
  std::atomic<bool> over = false;
  std::atomic<int64_t> steps = 0;
  std::atomic<int64_t> mismatches = 0;
  absl::Mutex mu;
  absl::Status failure;  // the first

  void Fail(const absl::Status& status) {
    absl::MutexLock lock(&mu);
    if (failure.ok()) failure = status;
    over = true;
  }
};

// One session on both servers.
class Twin {
 public:
  Twin(Soak* soak, Plan plan, uint64_t seed) : soak_(soak), plan_(std::move(plan)), random_(seed) {}

  absl::Status Run(Client& undisturbed, Client& crashing) {
    GDN_ASSIGN_OR_RETURN(truth_, DurableSession::Create(undisturbed, plan_.create));
    GDN_ASSIGN_OR_RETURN(tested_, DurableSession::Create(crashing, plan_.create));
    for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Prefill(layer));
    while (!soak_->over) {
      const int kind = random_.NextInt(0, 19);
      if (kind == 0) {
        for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Prefill(layer));
      } else if (kind < 5) {
        GDN_RETURN_IF_ERROR(Draft());
      } else {
        for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Decode(layer, 1, false));
      }
    }
    GDN_ASSIGN_OR_RETURN(const v1::Session found, crashing.GetSession(tested_->name()));
    for (const v1::LayerState& state : found.layers()) {
      if (state.token_count() != truth_->token_count(state.layer())) {
        Mismatch(StrCat("layer ", state.layer(), " has seen ", state.token_count(), " tokens on the server, expected ",
                        truth_->token_count(state.layer())));
      }
    }
    if (truth_->stats().recoveries != 0) return absl::InternalError("the undisturbed server has lost steps");
    return absl::OkStatus();
  }

  const DurableSessionStats& stats() const { return tested_->stats(); }
  bool made() const { return tested_ != nullptr; }

 private:
  void Mismatch(const std::string& what) {
    ++soak_->mismatches;
    std::cerr << "MISMATCH " << tested_->name() << ": " << what << "\n";
  }

  template <typename Reply>
  void Compare(const char* call, int32_t layer, const Reply& tested, const Reply& truth) {
    ++soak_->steps;
    if (tested.output().SerializeAsString() != truth.output().SerializeAsString()) {
      Mismatch(StrCat(call, " of layer ", layer, " up to token ", truth_->token_count(layer), " gave other bytes"));
    }
    if (tested_->token_count(layer) != truth_->token_count(layer)) {
      Mismatch(StrCat("layer ", layer, " is at token ", tested_->token_count(layer), ", expected ",
                      truth_->token_count(layer)));
    }
  }

  absl::Status Prefill(int32_t layer) {
    v1::PrefillRequest request;
    request.set_layer(layer);
    SetInput(plan_, {random_.NextInt(0, kMaxPrefill)}, random_, &request);
    GDN_ASSIGN_OR_RETURN(const v1::PrefillResponse truth, truth_->Prefill(request));
    GDN_ASSIGN_OR_RETURN(const v1::PrefillResponse tested, tested_->Prefill(request));
    Compare("Prefill", layer, tested, truth);
    return absl::OkStatus();
  }

  absl::Status Decode(int32_t layer, int tokens, bool draft) {
    v1::DecodeRequest request;
    request.set_layer(layer);
    request.set_draft(draft);
    SetInput(plan_, {1, tokens}, random_, &request);
    GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse truth, truth_->Decode(request));
    GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse tested, tested_->Decode(request));
    Compare(draft ? "a draft" : "Decode", layer, tested, truth);
    return absl::OkStatus();
  }

  absl::Status Draft() {
    const int tokens = random_.NextInt(1, kMaxDraft);
    for (const int32_t layer : plan_.layers) GDN_RETURN_IF_ERROR(Decode(layer, tokens, true));
    const int accepted = random_.NextInt(0, tokens);
    GDN_RETURN_IF_ERROR(truth_->AcceptTokens(accepted).status());
    return tested_->AcceptTokens(accepted).status();
  }

  Soak* const soak_;
  const Plan plan_;
  Random random_;
  std::unique_ptr<DurableSession> truth_;
  std::unique_ptr<DurableSession> tested_;
};

absl::StatusOr<std::vector<Plan>> MakePlans(Client& client) {
  std::vector<Plan> plans;
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Model> models, client.ListModels());
  for (int i = 0; i < absl::GetFlag(FLAGS_sessions); ++i) {
    Plan plan;
    plan.create.set_session_id(StrCat("operator-", i));
    v1::OperatorSpec* const spec = plan.create.mutable_operator_();
    spec->set_key_heads(kKeyHeads);
    spec->set_value_heads(kValueHeads);
    spec->set_key_dim(kKeyDim);
    spec->set_value_dim(kValueDim);
    spec->set_layer_count(kOperatorLayers);
    for (int32_t layer = 0; layer < kOperatorLayers; ++layer) plan.layers.push_back(layer);
    plans.push_back(std::move(plan));
    for (const v1::Model& model : models) {
      Plan of_model;
      of_model.create.set_session_id(StrCat("model-", i));
      of_model.create.set_model(model.name());
      of_model.layers.assign(model.gdn_layers().begin(), model.gdn_layers().end());
      of_model.hidden_size = model.dims().hidden_size();
      plans.push_back(std::move(of_model));
    }
  }
  return plans;
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
  durable.push_back(StrCat("--checkpoint-every-tokens=", interval));
  std::filesystem::create_directory(folder + "/disk");

  const std::string program = absl::GetFlag(FLAGS_server);
  ServerProcess undisturbed(program, flags, folder, "undisturbed");
  ServerProcess crashing(program, durable, folder, "crashing");
  GDN_RETURN_IF_ERROR(undisturbed.Start());
  GDN_RETURN_IF_ERROR(crashing.Start());
  const std::unique_ptr<Client> truth = Client::Connect(undisturbed.target());
  const std::unique_ptr<Client> tested = Client::Connect(crashing.target());
  GDN_ASSIGN_OR_RETURN(std::vector<Plan> plans, MakePlans(*truth));

  Soak soak;
  std::vector<std::unique_ptr<Twin>> twins;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < plans.size(); ++i) {
    twins.push_back(std::make_unique<Twin>(&soak, std::move(plans[i]), seed * 1000 + i));
    threads.emplace_back([&soak, &truth, &tested, twin = twins.back().get()] {
      if (absl::Status status = twin->Run(*truth, *tested); !status.ok()) soak.Fail(status);
    });
  }
  Random random(seed);
  int kills = 0;
  while (kills < rounds && !soak.over) {
    absl::SleepFor(absl::Microseconds(random.NextInt(0, 1000 * absl::GetFlag(FLAGS_longest_life_ms))));
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
  for (const auto& twin : twins) {
    if (!twin->made()) continue;
    const DurableSessionStats& stats = twin->stats();
    sum.retries += stats.retries;
    sum.recoveries += stats.recoveries;
    sum.recreations += stats.recreations;
    sum.replayed_steps += stats.replayed_steps;
    sum.replayed_tokens += stats.replayed_tokens;
    sum.max_lost_tokens = std::max(sum.max_lost_tokens, stats.max_lost_tokens);
  }
  absl::PrintF(
      "crash_soak seed %d: %d of %d kills, %d sessions, %d steps compared, %d recoveries (%d from nothing), "
      "%d steps and %d tokens replayed, at most %d tokens of a layer lost by a kill (interval %d), %d mismatches\n",
      seed, kills, rounds, twins.size(), soak.steps.load(), sum.recoveries, sum.recreations, sum.replayed_steps,
      sum.replayed_tokens, sum.max_lost_tokens, interval, soak.mismatches.load());
  GDN_RETURN_IF_ERROR(soak.failure);
  if (soak.mismatches != 0) return absl::DataLossError("answers differ from the undisturbed server's");
  if (sum.max_lost_tokens > interval) return absl::DataLossError("a kill cost more than the checkpoint interval");
  if (rounds > 0 && sum.recoveries == 0) return absl::InternalError("no kill cost anything, so nothing was tested");
  return absl::OkStatus();
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  auto folder = gdn::TemporaryFolder::Make();
  const absl::Status status = folder.ok() ? gdn::RunSoak(folder->path()) : folder.status();
  if (status.ok()) return 0;
  std::cerr << "crash_soak: " << status << "\n";
  if (!folder.ok()) return 1;
  std::cerr << "The servers' logs and files are in " << folder->path() << "\n";
  folder->Keep();
  return 1;
}
