#include "tools/gdnctl/replay/replay.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"

namespace gdn {
namespace {

constexpr int64_t kSegmentLengths[] = {1, 7, 64, 250};
constexpr absl::Duration kDeleteTimeout = absl::Seconds(5);
// A step that was cancelled may still hold its session for a moment.
constexpr int kDeleteAttempts = 40;
constexpr absl::Duration kDeletePause = absl::Milliseconds(50);

const std::vector<std::string>& PathNames() {
  static const auto* const names = new std::vector<std::string>{
      "prefill unary", "prefill streamed", "decode unary", "decode streamed", "whole", "conv state", "recurrent state"};
  return *names;
}

// Sessions for the length of a replay: deleted when they go out of scope, whatever happened.
class ScratchSessions {
 public:
  ScratchSessions(Client& client, std::string model)
      : client_(client), model_(std::move(model)), affinity_(StrCat("gdnctl-", RandomId().substr(0, 12))) {}
  ~ScratchSessions() { (void)DeleteAll(); }
  ScratchSessions(const ScratchSessions&) = delete;
  ScratchSessions& operator=(const ScratchSessions&) = delete;

  // One for all of them, with random bits.
  const std::string& affinity() const { return affinity_; }

  // `count` sessions with ids "AFFINITY-PURPOSE-N"; their names.
  absl::StatusOr<std::vector<std::string>> Create(std::string_view purpose, int64_t count) {
    std::vector<std::string> created;
    for (int64_t i = 0; i < count; ++i) {
      v1::CreateSessionRequest request;
      request.set_session_id(StrCat(affinity_, "-", purpose, "-", i));
      request.set_model(model_);
      request.set_affinity(affinity_);
      // Noted before the call: one that seems to fail, by a deadline say, may still have made the session.
      names_.push_back(StrCat("sessions/", request.session_id()));
      GDN_ASSIGN_OR_RETURN(const v1::Session session,
                           client_.CreateSession(request, {.timeout = {}, .affinity = affinity_}));
      created.push_back(session.name());
    }
    return created;
  }

  // Deletes what was made, waiting for cancelled steps to let go of it; tries all, and returns the first error.
  absl::Status DeleteAll() {
    absl::Status first;
    for (const std::string& name : std::exchange(names_, {})) {
      absl::Status status;
      for (int attempt = 0; attempt < kDeleteAttempts; ++attempt) {
        status = client_.DeleteSession(name, {.timeout = kDeleteTimeout, .affinity = affinity_});
        if (ErrorReason(status) != reason::kSessionBusy) break;
        absl::SleepFor(kDeletePause);
      }
      if (!absl::IsNotFound(status)) first.Update(status);
      if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) break;  // the server is gone: so are they
    }
    return first;
  }

 private:
  Client& client_;
  const std::string model_;
  const std::string affinity_;
  std::vector<std::string> names_;
};

class Replayer {
 public:
  Replayer(Client& client, const GoldenIo& io, const ReplayOptions& options)
      : client_(client), io_(io), options_(options), table_(LayersOf(io), PathNames()) {}

  absl::StatusOr<ErrorTable> Run() {
    GDN_RETURN_IF_ERROR(CheckModel());
    ScratchSessions sessions(client_, options_.model);
    call_.affinity = sessions.affinity();
    GDN_ASSIGN_OR_RETURN(const auto unary, sessions.Create("unary", io_.batch));
    GDN_ASSIGN_OR_RETURN(const auto streamed, sessions.Create("streamed", io_.batch));
    GDN_ASSIGN_OR_RETURN(const auto whole, sessions.Create("whole", io_.batch));
    for (const GoldenLayer& layer : io_.layers) {
      GDN_RETURN_IF_ERROR(Path(layer, kPrefillUnary, [&] {
        return PrefillUnary(layer, kPrefillUnary, layer.prefill_in, layer.prefill_out, unary);
      }));
      GDN_RETURN_IF_ERROR(Path(layer, kPrefillStreamed, [&] { return PrefillStreamed(layer, streamed); }));
      GDN_RETURN_IF_ERROR(Path(layer, kDecodeUnary, [&] { return DecodeUnary(layer, unary); }));
      GDN_RETURN_IF_ERROR(Path(layer, kDecodeStreamed, [&] { return DecodeStreamed(layer, streamed); }));
      if (!layer.has_whole()) {
        table_.Skip(layer.layer, kWhole);
        continue;
      }
      GDN_RETURN_IF_ERROR(
          Path(layer, kWhole, [&] { return PrefillUnary(layer, kWhole, layer.whole_in, layer.whole_out, whole); }));
    }
    for (const auto* names : {&unary, &streamed}) {
      for (int64_t b = 0; b < io_.batch; ++b) GDN_RETURN_IF_ERROR(CompareStates((*names)[static_cast<size_t>(b)], b));
    }
    GDN_RETURN_IF_ERROR(sessions.DeleteAll());
    return std::move(table_);
  }

 private:
  static std::vector<int32_t> LayersOf(const GoldenIo& io) {
    std::vector<int32_t> layers;
    for (const GoldenLayer& layer : io.layers) layers.push_back(layer.layer);
    return layers;
  }

  // Before anything is made on the server: a replay against the wrong model should say so at once.
  absl::Status CheckModel() {
    GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, client_.GetServerInfo());
    max_stored_reply_bytes_ = info.limits().max_stored_reply_bytes();
    GDN_ASSIGN_OR_RETURN(const v1::Model model, client_.GetModel(options_.model));
    if (model.has_heads()) {
      return absl::FailedPreconditionError(StrCat(
          "the server has only some heads of ", options_.model,
          ", so its outputs are partial sums and cannot be compared; replay against a server that has all heads"));
    }
    if (model.dims().hidden_size() != io_.hidden_size) {
      return absl::FailedPreconditionError(StrCat(options_.model, " has hidden size ", model.dims().hidden_size(),
                                                  ", the recording ", io_.hidden_size,
                                                  "; is it the recording of another model?"));
    }
    for (const GoldenLayer& layer : io_.layers) {
      if (std::find(model.gdn_layers().begin(), model.gdn_layers().end(), layer.layer) == model.gdn_layers().end()) {
        return absl::FailedPreconditionError(
            StrCat("the recording has layer ", layer.layer, ", which is no GDN layer of ", options_.model));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Announce(std::string_view what) {
    return options_.before_part ? options_.before_part(what) : absl::OkStatus();
  }

  template <typename Body>
  absl::Status Path(const GoldenLayer& layer, ReplayPath path, const Body& body) {
    const std::string what = StrCat("layer ", layer.layer, ": ", PathNames()[path]);
    GDN_RETURN_IF_ERROR(Announce(what));
    return WithPrefix(body(), what);
  }

  template <typename Request>
  void SetRequestId(const GoldenLayer& layer, ReplayPath path, int64_t step, int64_t tokens, Request* request) const {
    const int64_t reply_bytes = tokens * io_.hidden_size * static_cast<int64_t>(DTypeSize(DType::kF32));
    if (reply_bytes > max_stored_reply_bytes_) return;  // it would be refused
    request->set_request_id(StrCat(layer.layer, "-", static_cast<size_t>(path), "-", step));
  }

  absl::StatusOr<v1::PrefillRequest> MakePrefill(const GoldenLayer& layer, ReplayPath path, int64_t step,
                                                 const std::string& session, absl::Span<const float> input,
                                                 int64_t expected_tokens) const {
    v1::PrefillRequest request;
    request.set_session(session);
    request.set_layer(layer.layer);
    const int64_t tokens = static_cast<int64_t>(input.size()) / io_.hidden_size;
    GDN_ASSIGN_OR_RETURN(*request.mutable_hidden_states()->mutable_hidden_states(),
                         MakeTensor(input, {tokens, io_.hidden_size}, options_.dtype));
    request.set_expected_token_count(expected_tokens);
    request.set_output_dtype(v1::DTYPE_F32);
    SetRequestId(layer, path, step, tokens, &request);
    return request;
  }

  absl::StatusOr<v1::DecodeRequest> MakeDecode(const GoldenLayer& layer, ReplayPath path, int64_t step,
                                               const std::vector<std::string>& sessions) const {
    v1::DecodeRequest request;
    request.set_layer(layer.layer);
    for (const std::string& session : sessions) {
      request.add_sessions(session);
      request.add_expected_token_counts(io_.prompt_tokens + step);
    }
    const GoldenTensor& input = layer.decode_in[static_cast<size_t>(step)];
    GDN_ASSIGN_OR_RETURN(*request.mutable_hidden_states()->mutable_hidden_states(),
                         MakeTensor(input.values, input.shape, options_.dtype));
    request.set_output_dtype(v1::DTYPE_F32);
    SetRequestId(layer, path, step, 1, &request);
    return request;
  }

  absl::Status CheckCount(int64_t found, int64_t expected) const {
    if (found == expected) return absl::OkStatus();
    return absl::InternalError(StrCat("the reply says ", found, " tokens, expected ", expected));
  }

  // Appends a prefill's output to `outputs`.
  absl::Status TakePrefill(const v1::PrefillResponse& reply, int64_t tokens, int64_t expected_count,
                           std::vector<float>* outputs) const {
    GDN_RETURN_IF_ERROR(CheckCount(reply.token_count(), expected_count));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> output, TensorToFloats(reply.output(), {{tokens, io_.hidden_size}}));
    outputs->insert(outputs->end(), output.begin(), output.end());
    return absl::OkStatus();
  }

  // Each step is a tensor of its own in the recording: the worst step counts.
  absl::Status TakeDecode(const GoldenLayer& layer, ReplayPath path, int64_t step, const v1::DecodeResponse& reply) {
    if (reply.token_counts_size() != io_.batch) {
      return absl::InternalError(
          StrCat("the reply has ", reply.token_counts_size(), " token counts, expected ", io_.batch));
    }
    for (const int64_t count : reply.token_counts())
      GDN_RETURN_IF_ERROR(CheckCount(count, io_.prompt_tokens + step + 1));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> output,
                         TensorToFloats(reply.output(), {{io_.batch, 1, io_.hidden_size}}));
    table_.Record(layer.layer, path, RelativeError(output, layer.decode_out[static_cast<size_t>(step)].values));
    return absl::OkStatus();
  }

  absl::Status PrefillUnary(const GoldenLayer& layer, ReplayPath path, const GoldenTensor& input,
                            const GoldenTensor& want, const std::vector<std::string>& sessions) {
    std::vector<float> outputs;
    for (int64_t b = 0; b < io_.batch; ++b) {
      GDN_ASSIGN_OR_RETURN(const v1::PrefillRequest request,
                           MakePrefill(layer, path, 0, sessions[static_cast<size_t>(b)], input.Sequence(b), 0));
      GDN_ASSIGN_OR_RETURN(const v1::PrefillResponse reply, client_.Prefill(request, call_));
      GDN_RETURN_IF_ERROR(TakePrefill(reply, input.shape[1], input.shape[1], &outputs));
    }
    table_.Record(layer.layer, path, RelativeError(outputs, want.values));
    return absl::OkStatus();
  }

  // Writes all `requests` from a second thread, as an engine that does not wait would, and hands the replies to `take`
  // in order.
  template <typename Stream, typename Request, typename Take>
  absl::Status Exchange(Stream& stream, const std::vector<Request>& requests, const Take& take) {
    std::thread writer([&] {
      for (const Request& request : requests) {
        if (!stream.Write(request).ok()) return;  // the reader meets the end of the stream, and Finish() its reason
      }
    });
    absl::Status status;
    size_t replies = 0;
    while (status.ok() && replies < requests.size()) {
      auto reply = stream.Read();
      if (!reply.has_value()) break;
      status = reply->ok() ? take(replies++, **reply) : reply->status();
    }
    if (!status.ok()) stream.Cancel();
    writer.join();
    const absl::Status finished = stream.Finish();
    GDN_RETURN_IF_ERROR(status);
    GDN_RETURN_IF_ERROR(finished);
    if (replies == requests.size()) return absl::OkStatus();
    return absl::InternalError(StrCat("the stream gave ", replies, " replies to ", requests.size(), " requests"));
  }

  absl::Status PrefillStreamed(const GoldenLayer& layer, const std::vector<std::string>& sessions) {
    const std::vector<int64_t> segments = UnevenSegments(io_.prompt_tokens);
    std::vector<float> outputs;
    for (int64_t b = 0; b < io_.batch; ++b) {
      std::vector<v1::PrefillRequest> requests;
      std::vector<int64_t> counts;  // tokens after each segment
      int64_t done = 0;
      for (const int64_t tokens : segments) {
        GDN_ASSIGN_OR_RETURN(
            requests.emplace_back(),
            MakePrefill(layer, kPrefillStreamed, static_cast<int64_t>(requests.size()),
                        sessions[static_cast<size_t>(b)], layer.prefill_in.Tokens(b, done, tokens), done));
        counts.push_back(done += tokens);
      }
      GDN_ASSIGN_OR_RETURN(PrefillStream stream, client_.StreamPrefill(call_));
      GDN_RETURN_IF_ERROR(Exchange(stream, requests, [&](size_t i, const v1::PrefillResponse& reply) {
        return TakePrefill(reply, segments[i], counts[i], &outputs);
      }));
    }
    table_.Record(layer.layer, kPrefillStreamed, RelativeError(outputs, layer.prefill_out.values));
    return absl::OkStatus();
  }

  absl::Status DecodeUnary(const GoldenLayer& layer, const std::vector<std::string>& sessions) {
    std::vector<float> outputs;
    for (int64_t step = 0; step < io_.decode_steps; ++step) {
      GDN_ASSIGN_OR_RETURN(const v1::DecodeRequest request, MakeDecode(layer, kDecodeUnary, step, sessions));
      GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, client_.Decode(request, call_));
      GDN_RETURN_IF_ERROR(TakeDecode(layer, kDecodeUnary, step, reply));
    }
    return absl::OkStatus();
  }

  absl::Status DecodeStreamed(const GoldenLayer& layer, const std::vector<std::string>& sessions) {
    std::vector<v1::DecodeRequest> requests;
    for (int64_t step = 0; step < io_.decode_steps; ++step) {
      GDN_ASSIGN_OR_RETURN(requests.emplace_back(), MakeDecode(layer, kDecodeStreamed, step, sessions));
    }
    GDN_ASSIGN_OR_RETURN(DecodeStream stream, client_.StreamDecode(call_));
    return Exchange(stream, requests, [&](size_t i, const v1::DecodeResponse& reply) {
      return TakeDecode(layer, kDecodeStreamed, static_cast<int64_t>(i), reply);
    });
  }

  absl::Status CompareStates(const std::string& session, int64_t sequence) {
    const std::string what = StrCat("state of ", session);
    GDN_RETURN_IF_ERROR(Announce(what));
    v1::ExportStateRequest request;
    request.set_name(session);
    request.set_include_recurrent_state(true);
    auto bytes = client_.ExportState(request, call_);
    if (!bytes.ok()) return WithPrefix(bytes.status(), what);
    GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Parse(*bytes));
    for (const GoldenLayer& layer : io_.layers) {
      const std::string prefix = StrCat("layer.", layer.layer, ".");
      const std::vector<int64_t>& golden = layer.recurrent_state.shape;
      GDN_ASSIGN_OR_RETURN(const std::vector<float> state,
                           file.Floats(prefix + "recurrent_state", {{golden[1], golden[2], golden[3]}}));
      table_.Record(layer.layer, kRecurrentState, RelativeError(state, layer.recurrent_state.Sequence(sequence)));
      GDN_RETURN_IF_ERROR(CompareConvState(layer, file, prefix + "conv_state", sequence));
    }
    return absl::OkStatus();
  }

  // The server keeps the W - 1 newest inputs of each channel; the recording may keep more.
  absl::Status CompareConvState(const GoldenLayer& layer, const SafetensorsFile& file, const std::string& name,
                                int64_t sequence) {
    const int64_t channels = layer.conv_state.shape[1];
    const int64_t recorded = layer.conv_state.shape[2];
    GDN_ASSIGN_OR_RETURN(const std::vector<float> got, file.Floats(name, {{channels, -1}}));
    const int64_t columns = file.entries().at(name).shape[1];
    if (columns < 1 || columns > recorded) {
      return absl::FailedPreconditionError(
          StrCat("tensor '", name, "' of the exported state has ", columns, " columns, the recording ", recorded));
    }
    const absl::Span<const float> all = layer.conv_state.Sequence(sequence);
    std::vector<float> want;
    for (int64_t channel = 0; channel < channels; ++channel) {
      const auto newest =
          all.subspan(static_cast<size_t>((channel + 1) * recorded - columns), static_cast<size_t>(columns));
      want.insert(want.end(), newest.begin(), newest.end());
    }
    table_.Record(layer.layer, kConvState, RelativeError(got, want));
    return absl::OkStatus();
  }

  Client& client_;
  const GoldenIo& io_;
  const ReplayOptions& options_;
  CallOptions call_;
  int64_t max_stored_reply_bytes_ = 0;
  ErrorTable table_;
};

}  // namespace

std::vector<int64_t> UnevenSegments(int64_t tokens) {
  std::vector<int64_t> segments;
  for (size_t i = 0; tokens > 0; i = (i + 1) % std::size(kSegmentLengths)) {
    segments.push_back(std::min(tokens, kSegmentLengths[i]));
    tokens -= segments.back();
  }
  return segments;
}

absl::StatusOr<ErrorTable> Replay(Client& client, const GoldenIo& io, const ReplayOptions& options) {
  return Replayer(client, io, options).Run();
}

}  // namespace gdn
