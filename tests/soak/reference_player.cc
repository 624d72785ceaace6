// A Player of the plain Client that recovers in the simplest way that can be right: from the session's start.
#include <future>
#include <optional>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/async_client.h"
#include "client/cpp/retry.h"
#include "tests/soak/player.h"

namespace gdn {
namespace {

using KeptCall = std::variant<SessionStep, DraftChoice>;

class ReferencePlayer final : public Player {
 public:
  ReferencePlayer(Client& client, v1::CreateSessionRequest create, CallForm form, MixedBy mixed,
                  absl::Duration try_timeout)
      : client_(client),
        create_(std::move(create)),
        form_(form),
        mixed_(mixed),
        try_timeout_(try_timeout),
        async_(client) {}

  absl::Status Begin() {
    GDN_ASSIGN_OR_RETURN(const v1::Session made, Retried([&] { return client_.CreateSession(create_, Try()); }));
    Take(made);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Step(const std::vector<SessionStep>& rows) override {
    const std::string id = RandomId();
    std::string output;
    GDN_RETURN_IF_ERROR(Recovered([&] { return SendStep(form_, rows.front(), id, &output); }));
    calls_.emplace_back(rows.front());
    return std::vector<std::string>{output};
  }

  absl::StatusOr<std::vector<std::string>> StepMixed(const std::vector<MixedRow>& rows) override {
    const MixedRow& row = rows.front();
    const bool empty = StepTokens(row.step) == 0;
    std::vector<std::string> outputs = {""};
    if (mixed_ == MixedBy::kOtherMethods) {
      if (row.accept_before.has_value()) GDN_RETURN_IF_ERROR(Accept(*row.accept_before));
      if (empty) return outputs;
      return Step({row.step});
    }
    const std::string id = RandomId();
    GDN_RETURN_IF_ERROR(Recovered([&] { return SendMixed(row, id, &outputs.front()); }));
    if (row.accept_before.has_value()) calls_.emplace_back(*row.accept_before);
    if (!empty) calls_.emplace_back(row.step);
    return outputs;
  }

  absl::Status Accept(const DraftChoice& choice) override {
    const std::string id = RandomId();
    GDN_RETURN_IF_ERROR(Recovered([&] { return SendAccept(form_, choice, id); }));
    calls_.emplace_back(choice);
    return absl::OkStatus();
  }

  std::map<int32_t, int64_t> Counts(size_t /*row*/) const override { return counts_; }

  absl::StatusOr<std::unique_ptr<Player>> Fork(const std::string& child) override {
    v1::ForkSessionRequest request;
    request.set_name(name());
    request.add_session_ids(child);
    v1::ForkSessionResponse reply;
    GDN_RETURN_IF_ERROR(Recovered([&]() -> absl::Status {
      request.set_session_epoch(epoch_);
      GDN_ASSIGN_OR_RETURN(reply, SendFork(request));
      return absl::OkStatus();
    }));
    v1::CreateSessionRequest create = create_;
    create.set_session_id(child);
    auto fork = std::make_unique<ReferencePlayer>(client_, std::move(create), form_, mixed_, try_timeout_);
    fork->calls_ = calls_;
    fork->Take(reply.sessions(0));
    return fork;
  }

  absl::StatusOr<std::string> Export() override {
    v1::ExportStateRequest request;
    request.set_name(name());
    std::string file;
    GDN_RETURN_IF_ERROR(Recovered([&]() -> absl::Status {
      request.set_session_epoch(epoch_);
      GDN_ASSIGN_OR_RETURN(file, client_.ExportState(request, Try()));
      return absl::OkStatus();
    }));
    return file;
  }

  absl::StatusOr<v1::Checkpoint> Checkpoint(const std::string& checkpoint_id) override {
    v1::CheckpointSessionRequest request;
    request.set_name(name());
    request.set_checkpoint_id(checkpoint_id);
    v1::Checkpoint made;
    GDN_RETURN_IF_ERROR(Recovered([&]() -> absl::Status {
      request.set_session_epoch(epoch_);
      GDN_ASSIGN_OR_RETURN(made, SendCheckpoint(request));
      return absl::OkStatus();
    }));
    checkpoints_[checkpoint_id] = calls_;
    return made;
  }

  // Goes back to the checkpoint. If it ended with the session, makes the session again and repeats its calls up to the
  // checkpoint.
  absl::StatusOr<v1::Session> Restore(const std::string& checkpoint_id) override {
    v1::RestoreCheckpointRequest request;
    request.set_name(name());
    request.set_checkpoint_id(checkpoint_id);
    const absl::Time deadline = absl::Now() + kLongestAnswer;
    for (;;) {
      request.set_session_epoch(epoch_);
      absl::StatusOr<v1::Session> restored = client_.RestoreCheckpoint(request, Try());
      const std::string reason = ErrorReason(restored.status());
      if (reason == reason::kEpochMismatch) {
        GDN_ASSIGN_OR_RETURN(const v1::Session found, Retried([&] { return client_.GetSession(name(), Try()); }));
        epoch_ = found.epoch();
      } else if (reason == reason::kCheckpointNotFound || reason == reason::kSessionNotFound) {
        calls_ = checkpoints_.at(checkpoint_id);
        GDN_RETURN_IF_ERROR(MakeAnew());
        return Retried([&] { return client_.GetSession(name(), Try()); });
      } else if (restored.ok()) {
        calls_ = checkpoints_.at(checkpoint_id);
        Take(*restored);
        return restored;
      } else if (!WorthAnotherTry(restored.status()) || absl::Now() > deadline) {
        return restored.status();
      }
    }
  }

  absl::StatusOr<std::string> Watch() override {
    std::string file;
    GDN_RETURN_IF_ERROR(Recovered([&]() -> absl::Status {
      v1::WatchStateRequest request;
      request.set_name(name());
      request.set_every_tokens(1);
      request.set_session_epoch(epoch_);
      GDN_ASSIGN_OR_RETURN(StateWatch watch, client_.WatchState(request, Try()));
      GDN_ASSIGN_OR_RETURN(StateSnapshot snapshot, watch.Next());
      file = std::move(snapshot.file);
      return absl::OkStatus();
    }));
    return file;
  }

  absl::StatusOr<bool> KeepPrefix(const v1::PromptPrefix& prefix) override {
    v1::KeepPrefixRequest request;
    request.set_name(name());
    *request.mutable_prefix() = prefix;
    bool kept = false;
    GDN_RETURN_IF_ERROR(Recovered([&]() -> absl::Status {
      request.set_session_epoch(epoch_);
      const auto reply = client_.KeepPrefix(request, Try());
      if (ErrorReason(reply.status()) == reason::kPrefixMismatch) return absl::OkStatus();
      if (!reply.ok()) return reply.status();
      kept = reply->kept();
      return absl::OkStatus();
    }));
    return kept;
  }
  int64_t prefix_tokens() const override { return 0; }
  absl::StatusOr<bool> IsDurable() override { return false; }  // it keeps all inputs

  absl::Status Delete() override {
    const absl::Status status = Retried([&]() -> absl::StatusOr<bool> {
                                  GDN_RETURN_IF_ERROR(client_.DeleteSession(name(), Try()));
                                  return true;
                                }).status();
    return ErrorReason(status) == reason::kSessionNotFound ? absl::OkStatus() : status;
  }
  int64_t recoveries() const override { return recoveries_; }

 private:
  std::string name() const { return StrCat("sessions/", create_.session_id()); }
  CallOptions Try() const { return {.timeout = try_timeout_, .affinity = {}}; }

  void Take(const v1::Session& session) {
    epoch_ = session.epoch();
    for (const v1::LayerState& layer : session.layers()) counts_[layer.layer()] = layer.token_count();
  }

  template <typename Call>
  auto Retried(const Call& call) -> decltype(call()) {
    const absl::Time deadline = absl::Now() + kLongestAnswer;
    for (;;) {
      auto result = call();
      if (result.ok() || !WorthAnotherTry(result.status()) || absl::Now() > deadline) return result;
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  template <typename Call>
  absl::Status Recovered(const Call& call) {
    const absl::Time deadline = absl::Now() + kLongestAnswer;
    for (;;) {
      const absl::Status status = call();
      if (status.ok() || absl::Now() > deadline) return status;
      if (SessionHasMoved(status)) {
        ++recoveries_;
        GDN_RETURN_IF_ERROR(MakeAnew());
      } else if (!WorthAnotherTry(status)) {
        return status;
      } else {
        absl::SleepFor(absl::Milliseconds(2));
      }
    }
  }

  // The session as it was, by calls of one message each.
  absl::Status MakeAnew() {
    const absl::Time deadline = absl::Now() + kLongestAnswer;
    for (;;) {
      const absl::Status status = TryToMakeAnew();
      if (status.ok() || absl::Now() > deadline) return status;
      if (!SessionHasMoved(status) && !WorthAnotherTry(status)) return status;
    }
  }
  absl::Status TryToMakeAnew() {
    GDN_RETURN_IF_ERROR(Delete());
    counts_.clear();
    GDN_RETURN_IF_ERROR(Begin());
    for (const auto& [layer, count] : counts_) {
      // Only a store that was set back may have it again; the worker knows.
      if (count > 0) return absl::DataLossError("a session that was deleted is back");
    }
    for (const KeptCall& call : calls_) {
      const std::string id = RandomId();
      std::string ignored;
      const auto send = [&]() -> absl::StatusOr<bool> {
        const auto* const step = std::get_if<SessionStep>(&call);
        GDN_RETURN_IF_ERROR(step != nullptr ? SendStep(CallForm::kUnary, *step, id, &ignored)
                                            : SendAccept(CallForm::kUnary, std::get<DraftChoice>(call), id));
        return true;
      };
      GDN_RETURN_IF_ERROR(Retried(send).status());
    }
    return absl::OkStatus();
  }

  // Starts a call of an AsyncClient and returns the reply that its callback gets.
  template <typename Response, typename Start>
  static absl::StatusOr<Response> Await(const Start& start) {
    std::promise<absl::StatusOr<Response>> answered;
    start([&answered](absl::StatusOr<Response> reply) { answered.set_value(std::move(reply)); });
    return answered.get_future().get();
  }

  absl::Status SendStep(CallForm form, const SessionStep& step, const std::string& id, std::string* output) {
    if (const auto* const prefill = std::get_if<v1::PrefillRequest>(&step); prefill != nullptr) {
      v1::PrefillRequest request = *prefill;
      request.set_session(name());
      request.set_session_epoch(epoch_);
      request.set_expected_token_count(counts_[request.layer()]);
      request.set_request_id(id);
      GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply, SendPrefill(form, request));
      counts_[request.layer()] = reply.token_count();
      *output = std::move(*reply.mutable_output()->mutable_data());
      return absl::OkStatus();
    }
    v1::DecodeRequest request = std::get<v1::DecodeRequest>(step);
    request.add_sessions(name());
    request.add_session_epochs(epoch_);
    request.add_expected_token_counts(counts_[request.layer()]);
    request.set_request_id(id);
    GDN_ASSIGN_OR_RETURN(v1::DecodeResponse reply, SendDecode(form, request));
    counts_[request.layer()] = reply.token_counts(0);
    *output = std::move(*reply.mutable_output()->mutable_data());
    return absl::OkStatus();
  }

  // Sends a step in the given form. A stream gets one message at a time, because it may break at each.
  absl::StatusOr<v1::PrefillResponse> SendPrefill(CallForm form, const v1::PrefillRequest& request) {
    if (form == CallForm::kUnary) return client_.Prefill(request, Try());
    if (form == CallForm::kAsync) {
      return Await<v1::PrefillResponse>([&](auto done) { async_.Prefill(request, std::move(done), Try()); });
    }
    return Exchange<v1::PrefillResponse>(prefills_, request,
                                         [&](const CallOptions& call) { return client_.StreamPrefill(call); });
  }
  absl::StatusOr<v1::DecodeResponse> SendDecode(CallForm form, const v1::DecodeRequest& request) {
    if (form == CallForm::kUnary) return client_.Decode(request, Try());
    if (form == CallForm::kAsync) {
      return Await<v1::DecodeResponse>([&](auto done) { async_.Decode(request, std::move(done), Try()); });
    }
    return Exchange<v1::DecodeResponse>(decodes_, request,
                                        [&](const CallOptions& call) { return client_.StreamDecode(call); });
  }

  absl::Status SendMixed(const MixedRow& row, const std::string& id, std::string* output) {
    v1::StepRequest request = MixedStepOf({row});
    v1::StepRow* const sent = request.mutable_rows(0);
    const int32_t accepted = row.accept_before.has_value() ? row.accept_before->tokens() : 0;
    sent->set_session(name());
    sent->set_session_epoch(epoch_);
    sent->set_expected_token_count(counts_[request.layer()] + accepted);
    request.set_request_id(id);
    GDN_ASSIGN_OR_RETURN(v1::StepResponse reply, SendStepOf(request));
    counts_[request.layer()] = reply.token_counts(0);
    *output = std::move(*reply.mutable_output()->mutable_data());
    return absl::OkStatus();
  }
  absl::StatusOr<v1::StepResponse> SendStepOf(const v1::StepRequest& request) {
    if (form_ == CallForm::kUnary) return client_.Step(request, Try());
    if (form_ == CallForm::kAsync) {
      return Await<v1::StepResponse>([&](auto done) { async_.Step(request, std::move(done), Try()); });
    }
    return Exchange<v1::StepResponse>(steps_, request,
                                      [&](const CallOptions& call) { return client_.StreamStep(call); });
  }

  // One message of the open stream, or of a new one; a stream that breaks, or whose deadline passes, is opened again.
  template <typename Response, typename Stream, typename Request, typename Open>
  absl::StatusOr<Response> Exchange(std::optional<Stream>& stream, const Request& request, const Open& open) {
    if (!stream.has_value()) {
      CallOptions call;
      call.timeout = 20 * try_timeout_;
      GDN_ASSIGN_OR_RETURN(Stream opened, open(call));
      stream.emplace(std::move(opened));
    }
    absl::Status written = stream->Write(request);
    std::optional<absl::StatusOr<Response>> reply;
    if (written.ok()) reply = stream->Read();
    if (reply.has_value()) return *std::move(reply);
    absl::Status ended = stream->Finish();
    stream.reset();
    return ended.ok() ? absl::UnavailableError("the stream has ended") : ended;
  }

  absl::Status SendAccept(CallForm form, const DraftChoice& choice, const std::string& id) {
    v1::AcceptTokensRequest request;
    v1::DraftAcceptance* const acceptance = request.add_acceptances();
    acceptance->set_session(name());
    acceptance->set_session_epoch(epoch_);
    acceptance->set_accepted_tokens(choice.first_tokens);
    acceptance->mutable_path()->Add(choice.path.begin(), choice.path.end());
    request.set_request_id(id);
    absl::StatusOr<v1::AcceptTokensResponse> reply =
        form == CallForm::kAsync
            ? Await<v1::AcceptTokensResponse>([&](auto done) { async_.AcceptTokens(request, std::move(done), Try()); })
            : client_.AcceptTokens(request, Try());
    GDN_RETURN_IF_ERROR(reply.status());
    for (const v1::LayerState& layer : reply->counts(0).layers()) counts_[layer.layer()] = layer.token_count();
    return absl::OkStatus();
  }
  absl::StatusOr<v1::ForkSessionResponse> SendFork(const v1::ForkSessionRequest& request) {
    if (form_ == CallForm::kAsync) {
      return Await<v1::ForkSessionResponse>([&](auto done) { async_.ForkSession(request, std::move(done), Try()); });
    }
    GDN_ASSIGN_OR_RETURN(const std::vector<v1::Session> children, client_.ForkSession(request, Try()));
    v1::ForkSessionResponse response;
    response.mutable_sessions()->Add(children.begin(), children.end());
    return response;
  }
  absl::StatusOr<v1::Checkpoint> SendCheckpoint(const v1::CheckpointSessionRequest& request) {
    if (form_ != CallForm::kAsync) return client_.CheckpointSession(request, Try());
    GDN_ASSIGN_OR_RETURN(v1::CheckpointSessionResponse reply, Await<v1::CheckpointSessionResponse>([&](auto done) {
                           async_.CheckpointSession(request, std::move(done), Try());
                         }));
    return std::move(*reply.mutable_checkpoint());
  }

  Client& client_;
  const v1::CreateSessionRequest create_;
  const CallForm form_;
  const MixedBy mixed_;
  const absl::Duration try_timeout_;
  AsyncClient async_;
  std::optional<PrefillStream> prefills_;
  std::optional<DecodeStream> decodes_;
  std::optional<MixedStream> steps_;
  int64_t epoch_ = 0;
  std::map<int32_t, int64_t> counts_;
  std::vector<KeptCall> calls_;                               // from the session's start
  std::map<std::string, std::vector<KeptCall>> checkpoints_;  // those of each
  int64_t recoveries_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Player>> MakeReferencePlayer(Client& client, const v1::CreateSessionRequest& create,
                                                            CallForm form, MixedBy mixed, absl::Duration try_timeout) {
  auto player = std::make_unique<ReferencePlayer>(client, create, form, mixed, try_timeout);
  GDN_RETURN_IF_ERROR(player->Begin());
  return player;
}

}  // namespace gdn
