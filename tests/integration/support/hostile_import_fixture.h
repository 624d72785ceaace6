// Fixture for imports of modified files: a server with three principals. One imports modified files, and another's
// bytes fill all reused memory, so that leaks are noticed. Records a session's answers, for comparison between runs.
//
// Thread safety: for one thread. Ownership: a fixture owns its server and callers.
//
//   class Mine : public HostileImport {};
//   Start();
//   const Answers answers = Import(*mallory_, changed_file, kPoison);
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files/safetensors.h"
#include "state_store/state_file/parse.h"
#include "tests/integration/support/poisoned_memory.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/integration/support/token_logins.h"
#include "tests/support/state_file_changes.h"

namespace gdn {

inline constexpr int kLayers = 3;
inline constexpr const char* kRequestIds[kLayers] = {"prefill", "decode", "draft"};  // of each layer's last step
// Four such bytes are a small negative float32, so that they may fill a state.
inline constexpr char kPoison = '\xa5';
inline constexpr char kOtherPoison = '\x9c';

// The answers of a session's calls, as text and bytes without anything that differs from run to run.
struct Answers {
  bool imported = false;
  std::string retries;  // answers to retries of the steps whose replies are in the file
  std::string later;    // states and steps

  friend bool operator==(const Answers&, const Answers&) = default;
};

inline std::string StatusText(const grpc::Status& status) {
  return absl::StrCat(status.error_code(), " ", ErrorInfoOf(status).reason(), " ", status.error_message(), "\n");
}

// Removes a step's compute_time_us, which differs in each run.
inline std::string WithoutTimes(std::string entry) {
  constexpr std::string_view kTime = "\"compute_time_us\":";
  const size_t at = entry.find(kTime);
  if (at != std::string::npos) entry.erase(at, entry.find_first_of(",}", at) - at);
  return entry;
}

// A server with three principals: alice exports, mallory imports, and bob's bytes are in all memory.
class HostileImport : public TokenLogins {
 protected:
  HostileImport() { WriteTokens("alice-token", "," + TokenEntry("mallory", "mallory-token")); }

  void Start(const std::string& disk_dir = "") {
    for (std::unique_ptr<Caller>* caller : {&alice_, &mallory_, &bob_}) caller->reset();
    server_.reset();
    GdnServerOptions options = Options();
    options.models = TokenFeed::Models();
    options.states.disk.directory = disk_dir;
    server_ = std::make_unique<TestServer>(std::move(options));
    alice_ = std::make_unique<Caller>(*server_, kAlice);
    mallory_ = std::make_unique<Caller>(*server_, "Bearer mallory-token");
    bob_ = std::make_unique<Caller>(*server_, kBob);
  }

  // Sends a layer's last step, with the id under which its reply is stored: layer 0 a prefill, layer 1 a decode into
  // the log, layer 2 a draft that is pending after an accepted one.
  Outcome<std::string> LastStep(const Caller& caller, const std::string& id, int layer) const {
    if (layer == 0) {
      const auto prefill = caller.Prefill(WithId(feed_.Prefill(id, {0, 5}, 0), kRequestIds[0]));
      return {prefill.status, prefill.reply.output().data() + absl::StrCat(" ", prefill.reply.token_count())};
    }
    const auto decode = layer == 1 ? caller.Decode(WithId(feed_.Decode({id}, TokenRange{6, 2}, 1), kRequestIds[1]))
                                   : caller.Decode(WithId(feed_.Draft({id}, {TokenRange{5, 3}}, 2), kRequestIds[2]));
    const auto& counts = decode.reply.token_counts();
    return {decode.status,
            decode.reply.output().data() + absl::StrCat(" ", counts.empty() ? -1 : decode.reply.token_counts(0))};
  }
  void MakeSession(const Caller& caller, const std::string& id) const {
    ASSERT_TRUE(feed_.Create(caller, id).ok());
    ASSERT_TRUE(caller.Prefill(feed_.Prefill(id, {0, 4}, 1)).ok());
    feed_.DecodeAll(caller, id, {4, 2}, 1);
    ASSERT_TRUE(caller.Decode(feed_.Draft({id}, {TokenRange{0, 5}}, 2)).ok());
    ASSERT_TRUE(caller.Accept(WithId(AcceptOf({id}, {5}), "accept")).ok());
    for (int layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(LastStep(caller, id, layer).ok()) << layer;
  }

  v1::ImportStateRequest::Target TargetOf(const std::string& id) const {
    const v1::CreateSessionRequest creation = feed_.Creation(id);
    v1::ImportStateRequest::Target target;
    target.set_session_id(id);
    if (creation.has_operator_()) {
      *target.mutable_operator_() = creation.operator_();
    } else {
      target.set_model(creation.model());
    }
    return target;
  }

  // Fills a session's slots with bob's bytes, and frees them.
  void LeaveBobsBytes(const std::string& file, char byte) const {
    const auto imported = bob_->Import(TargetOf("bob"), FilledStateFile(file, byte));
    ASSERT_TRUE(imported.ok()) << imported.status.error_message();
    ASSERT_TRUE(bob_->Delete("bob").ok());
  }

  // Return the part of an answer that must be equal in every run. The test fails if it contains bob's bytes.
  std::string Seen(const std::string& what, const std::string& bytes, char poison) const {
    EXPECT_FALSE(HoldsPoison(bytes, poison)) << what << " holds another principal's bytes";
    return absl::StrCat(what, ": ", bytes, "\n");
  }
  std::string Seen(const std::string& what, const Outcome<std::string>& outcome, char poison) const {
    if (outcome.ok()) return Seen(what, "ok " + outcome.reply, poison);
    EXPECT_NE(ErrorInfoOf(outcome.status).reason(), "") << what << ": " << outcome.status.error_message();
    EXPECT_NE(outcome.status.error_code(), grpc::StatusCode::INTERNAL) << what << outcome.status.error_message();
    return Seen(what, StatusText(outcome.status), poison);
  }
  std::string SeenState(const std::string& what, const Outcome<std::string>& exported, char poison) const {
    if (!exported.ok()) return Seen(what, exported, poison);
    EXPECT_FALSE(HoldsPoison(exported.reply, poison)) << what << " holds another principal's bytes";
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(exported.reply);
    EXPECT_TRUE(file.ok()) << file.status();
    std::string seen = what;
    for (const auto& [key, text] : file->metadata()) {
      if (key.starts_with("layer.") || key == "accept") absl::StrAppend(&seen, key, WithoutTimes(text), "\n");
    }
    for (const auto& [name, entry] : file->entries())
      absl::StrAppend(&seen, name, std::string(file->Bytes(name).value()), "\n");
    return seen;
  }

  // Returns the session's answers: retries of the steps with stored replies, its states, and further steps.
  Answers AnswersOf(const Caller& caller, const std::string& id, char poison) const {
    Answers answers{.imported = true, .retries = {}, .later = {}};
    for (int layer = 0; layer < kLayers; ++layer) {
      answers.retries += Seen(absl::StrCat("retry of layer ", layer), LastStep(caller, id, layer), poison);
    }
    answers.later += SeenState("state", caller.Export(id), poison);
    const auto accepted = caller.Accept(id, 1);
    answers.later += Seen("accept", Outcome<std::string>{accepted.status, ""}, poison);
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto step = caller.Decode(WithId(feed_.Decode({id}, TokenRange{20, 2}, layer), "next"));
      answers.later += Seen("step", Outcome<std::string>{step.status, step.reply.output().data()}, poison);
    }
    answers.later +=
        SeenState("state with its logs folded", caller.Export(id, /*include_recurrent_state=*/true), poison);
    return answers;
  }

  Answers Import(const Caller& caller, const std::string& file, char poison) const {
    const auto imported = caller.Import(TargetOf("x"), file);
    if (!imported.ok()) {
      EXPECT_EQ(caller.Get("x").reason(), "SESSION_NOT_FOUND");
      return {
          .imported = false, .retries = {}, .later = Seen("import", Outcome<std::string>{imported.status, ""}, poison)};
    }
    Answers answers = AnswersOf(caller, "x", poison);
    EXPECT_TRUE(caller.Delete("x").ok());
    return answers;
  }

  struct Held {
    int64_t states = 0, sessions = 0, replies = 0, copies = 0;
    friend bool operator==(const Held&, const Held&) = default;
  };
  Held HeldNow() const {
    ByteLedger& ledger = server_->server().ledger();
    return {ledger.held(BytePool::kStates), ledger.held(BytePool::kSessions), ledger.held(BytePool::kReplies),
            ledger.held(BytePool::kCopies)};
  }

  const TokenFeed feed_ = TokenFeed::Model();
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Caller> alice_, mallory_, bob_;
};

// Checks that retries of a modified file's steps return the bytes in that file, or are refused.
inline void ExpectRetriesOf(const std::string& file, const Answers& answers, const Answers& unchanged,
                            const std::string& name) {
  if (answers.retries == unchanged.retries) return;
  const absl::StatusOr<StateFile> parsed = ParseStateFile(file);
  if (!parsed.ok()) return;
  for (const StateFileLayer& layer : parsed->layers) {
    const std::string head = absl::StrCat("retry of layer ", layer.layer, ": ok ");
    const size_t at = answers.retries.find(head);
    const bool is_retry = layer.reply != nullptr && layer.reply->request_id == kRequestIds[layer.layer];
    if (at == std::string::npos || !is_retry) continue;  // refused, or a step of its own
    const std::string& output = layer.reply->output;
    EXPECT_FALSE(layer.reply->output_dropped) << name;
    EXPECT_EQ(answers.retries.compare(at + head.size(), output.size() + 1, output + " "), 0)
        << name << ": the retry of layer " << layer.layer << " is not the reply that the file holds";
  }
}

}  // namespace gdn
