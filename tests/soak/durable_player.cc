// A Player of DurableSession and DurableBatch.
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "client/cpp/durable_batch.h"
#include "client/cpp/retry.h"
#include "client/cpp/step_rows.h"
#include "tests/soak/player.h"

namespace gdn {
namespace {

// Repeats a call whose own time was over before it had an answer, as DurableSession asks for.
template <typename Call>
auto UntilAnswered(const Call& call) -> decltype(call()) {
  const absl::Time deadline = absl::Now() + kLongestAnswer;
  for (;;) {
    auto result = call();
    if (result.ok() || !WorthAnotherTry(result.status()) || absl::Now() > deadline) return result;
  }
}

class DurablePlayer final : public Player {
 public:
  DurablePlayer(Client& client, std::vector<std::unique_ptr<DurableSession>> sessions,
                const DurableSessionOptions& options)
      : client_(client), options_(options), sessions_(std::move(sessions)), batch_(client, options) {
    for (const auto& session : sessions_) together_.push_back(session.get());
  }

  absl::StatusOr<std::vector<std::string>> Step(const std::vector<SessionStep>& rows) override {
    const auto* const decode = std::get_if<v1::DecodeRequest>(&rows.front());
    if (decode != nullptr && rows.size() > 1) return StepTogether(rows);
    std::vector<std::string> outputs;
    for (size_t row = 0; row < rows.size(); ++row) {
      GDN_ASSIGN_OR_RETURN(outputs.emplace_back(), StepAlone(*sessions_[row], rows[row]));
    }
    return outputs;
  }

  // Rows that were given up are repeated alone; the others are done.
  absl::StatusOr<std::vector<std::string>> StepMixed(const std::vector<MixedRow>& rows) override {
    std::vector<std::string> outputs(rows.size());
    std::vector<absl::Status> statuses(rows.size(), absl::UnavailableError("not tried yet"));
    if (rows.size() > 1) {
      GDN_ASSIGN_OR_RETURN(DurableBatch::Reply reply, batch_.Step(together_, MixedStepOf(rows)));
      outputs = OutputsOf(rows, reply.output);
      statuses = std::move(reply.rows);
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      if (statuses[row].ok()) continue;
      if (!WorthAnotherTry(statuses[row])) return statuses[row];
      const v1::StepRequest alone = MixedStepOf({rows[row]});
      GDN_ASSIGN_OR_RETURN(v1::StepResponse reply, UntilAnswered([&] { return sessions_[row]->Step(alone); }));
      outputs[row] = std::move(*reply.mutable_output()->mutable_data());
    }
    return outputs;
  }

  absl::Status Accept(const DraftChoice& choice) override {
    if (sessions_.size() > 1) return AcceptTogether(choice);
    return UntilAnswered([&] {
             return choice.path.empty() ? sessions_[0]->AcceptTokens(choice.first_tokens)
                                        : sessions_[0]->AcceptPath(choice.path);
           })
        .status();
  }

  std::map<int32_t, int64_t> Counts(size_t row) const override {
    std::map<int32_t, int64_t> counts;
    for (const v1::LayerState& layer : sessions_[row]->session().layers()) {
      counts[layer.layer()] = sessions_[row]->token_count(layer.layer());
    }
    return counts;
  }

  absl::StatusOr<std::unique_ptr<Player>> Fork(const std::string& child) override {
    GDN_ASSIGN_OR_RETURN(auto children, UntilAnswered([&] { return sessions_[0]->Fork({child}); }));
    return std::make_unique<DurablePlayer>(client_, std::move(children), options_);
  }
  absl::StatusOr<std::string> Export() override {
    return UntilAnswered([&] { return sessions_[0]->ExportState(); });
  }
  absl::StatusOr<v1::Checkpoint> Checkpoint(const std::string& checkpoint_id) override {
    return UntilAnswered([&] { return sessions_[0]->Checkpoint(checkpoint_id); });
  }
  absl::StatusOr<v1::Session> Restore(const std::string& checkpoint_id) override {
    return UntilAnswered([&] { return sessions_[0]->Restore(checkpoint_id); });
  }
  absl::StatusOr<bool> KeepPrefix(const v1::PromptPrefix& prefix) override {
    const auto kept = UntilAnswered([&] { return sessions_[0]->KeepPrefix(prefix); });
    if (ErrorReason(kept.status()) == reason::kPrefixMismatch) return false;
    GDN_RETURN_IF_ERROR(kept.status());
    return kept->kept();
  }
  int64_t prefix_tokens() const override { return sessions_[0]->session().prefix_tokens(); }
  absl::StatusOr<bool> IsDurable() override {
    const auto found = UntilAnswered([&]() -> absl::StatusOr<v1::Session> {
      CallOptions call;
      call.timeout = absl::Seconds(10);
      return client_.GetSession(sessions_[0]->name(), call);
    });
    if (ErrorReason(found.status()) == reason::kSessionNotFound) return false;
    GDN_RETURN_IF_ERROR(found.status());
    return found->has_durable_time();
  }

  // A watch ends where the session has another epoch; a call of the session brings it back.
  absl::StatusOr<std::string> Watch() override {
    for (;;) {
      v1::WatchStateRequest request;
      request.set_name(sessions_[0]->name());
      request.set_every_tokens(1);
      request.set_session_epoch(sessions_[0]->epoch());
      absl::StatusOr<StateSnapshot> snapshot = UntilAnswered([&]() -> absl::StatusOr<StateSnapshot> {
        CallOptions call;
        call.timeout = absl::Seconds(10);
        GDN_ASSIGN_OR_RETURN(StateWatch watch, client_.WatchState(request, call));
        return watch.Next();
      });
      if (snapshot.ok()) return std::move(snapshot->file);
      if (!SessionHasMoved(snapshot.status())) return snapshot.status();
      GDN_RETURN_IF_ERROR(Checkpoint("").status());
    }
  }

  absl::Status Delete() override {
    absl::Status status;
    for (const auto& session : sessions_) {
      status.Update(UntilAnswered([&session]() -> absl::StatusOr<bool> {
                      GDN_RETURN_IF_ERROR(session->Delete());
                      return true;
                    }).status());
    }
    return status;
  }
  int64_t recoveries() const override {
    int64_t sum = 0;
    for (const auto& session : sessions_) sum += session->stats().recoveries;
    return sum;
  }

 private:
  static absl::StatusOr<std::string> StepAlone(DurableSession& session, const SessionStep& step) {
    if (const auto* const prefill = std::get_if<v1::PrefillRequest>(&step); prefill != nullptr) {
      GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply, UntilAnswered([&] { return session.Prefill(*prefill); }));
      return std::move(*reply.mutable_output()->mutable_data());
    }
    GDN_ASSIGN_OR_RETURN(v1::DecodeResponse reply,
                         UntilAnswered([&] { return session.Decode(std::get<v1::DecodeRequest>(step)); }));
    return std::move(*reply.mutable_output()->mutable_data());
  }

  // Rows that were given up are repeated alone; the others are done.
  absl::StatusOr<std::vector<std::string>> StepTogether(const std::vector<SessionStep>& rows) {
    std::vector<v1::DecodeRequest> parts;
    for (const SessionStep& row : rows) parts.push_back(std::get<v1::DecodeRequest>(row));
    std::vector<v1::DecodeRequest*> pointers;
    for (v1::DecodeRequest& part : parts) pointers.push_back(&part);
    GDN_ASSIGN_OR_RETURN(const DurableBatch::Reply reply, batch_.Decode(together_, JoinRows(pointers)));
    const size_t bytes = reply.output.data().size() / rows.size();
    std::vector<std::string> outputs;
    for (size_t row = 0; row < rows.size(); ++row) {
      outputs.push_back(reply.output.data().substr(row * bytes, bytes));
      if (reply.rows[row].ok()) continue;
      if (!WorthAnotherTry(reply.rows[row])) return reply.rows[row];
      GDN_ASSIGN_OR_RETURN(outputs.back(), StepAlone(*sessions_[row], rows[row]));
    }
    return outputs;
  }

  absl::Status AcceptTogether(const DraftChoice& choice) {
    const std::vector<int32_t> tokens(sessions_.size(), choice.first_tokens);
    const std::vector<std::vector<int32_t>> paths(sessions_.size(), choice.path);
    GDN_ASSIGN_OR_RETURN(const auto counts, choice.path.empty() ? batch_.AcceptTokens(together_, tokens)
                                                                : batch_.AcceptPaths(together_, paths));
    for (size_t row = 0; row < counts.size(); ++row) {
      if (counts[row].ok()) continue;
      if (!WorthAnotherTry(counts[row].status())) return counts[row].status();
      GDN_RETURN_IF_ERROR(UntilAnswered([&] {
                            return choice.path.empty() ? sessions_[row]->AcceptTokens(choice.first_tokens)
                                                       : sessions_[row]->AcceptPath(choice.path);
                          }).status());
    }
    return absl::OkStatus();
  }

  Client& client_;
  const DurableSessionOptions options_;
  std::vector<std::unique_ptr<DurableSession>> sessions_;
  std::vector<DurableSession*> together_;
  DurableBatch batch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Player>> MakeDurablePlayer(Client& client,
                                                          const std::vector<v1::CreateSessionRequest>& create,
                                                          const DurableSessionOptions& options) {
  std::vector<std::unique_ptr<DurableSession>> sessions;
  for (const v1::CreateSessionRequest& request : create) {
    GDN_ASSIGN_OR_RETURN(sessions.emplace_back(),
                         UntilAnswered([&] { return DurableSession::Create(client, request, options); }));
  }
  return std::make_unique<DurablePlayer>(client, std::move(sessions), options);
}

}  // namespace gdn
