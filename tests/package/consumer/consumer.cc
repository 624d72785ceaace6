// A user's program: every installed header, and a step each way against the server at argv[1].
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gdn/async_client.h"
#include "gdn/base/dtype.h"
#include "gdn/base/error.h"
#include "gdn/base/hash.h"
#include "gdn/base/status_macros.h"
#include "gdn/base/tensor_view.h"
#include "gdn/client.h"
#include "gdn/client_tls.h"
#include "gdn/durable_batch.h"
#include "gdn/durable_session.h"
#include "gdn/kept_steps.h"
#include "gdn/retry.h"
#include "gdn/rpc_status.h"
#include "gdn/shared_memory.h"
#include "gdn/state_transfer.h"
#include "gdn/state_watch.h"
#include "gdn/stream.h"
#include "gdn/tensor_codec.h"

namespace {

constexpr int64_t kDim = 4;  // H = HV = 1, K = V = 4

gdn::v1::CreateSessionRequest NewSession(const std::string& id) {
  gdn::v1::CreateSessionRequest create;
  create.set_session_id(id);
  gdn::v1::OperatorSpec* const spec = create.mutable_operator_();
  spec->set_key_heads(1);
  spec->set_value_heads(1);
  spec->set_key_dim(kDim);
  spec->set_value_dim(kDim);
  return create;
}

// Inputs of `leading` tokens: q = k = (1, 0, 0, 0), v = (1, 2, 3, 4), g = 0, beta = 1.
absl::Status FillIn(std::vector<int64_t> leading, gdn::v1::DeltaRuleInput* input) {
  int64_t tokens = 1;
  for (const int64_t dim : leading) tokens *= dim;
  std::vector<float> key, value;
  for (int64_t token = 0; token < tokens; ++token) {
    key.insert(key.end(), {1, 0, 0, 0});
    value.insert(value.end(), {1, 2, 3, 4});
  }
  std::vector<int64_t> heads = leading;
  heads.push_back(1);
  std::vector<int64_t> rows = heads;
  rows.push_back(kDim);
  GDN_ASSIGN_OR_RETURN(*input->mutable_q(), gdn::MakeTensor(key, rows));
  GDN_ASSIGN_OR_RETURN(*input->mutable_k(), gdn::MakeTensor(key, rows));
  GDN_ASSIGN_OR_RETURN(*input->mutable_v(), gdn::MakeTensor(value, rows));
  GDN_ASSIGN_OR_RETURN(*input->mutable_g(), gdn::MakeTensor(std::vector<float>(tokens, 0), heads));
  GDN_ASSIGN_OR_RETURN(*input->mutable_beta(), gdn::MakeTensor(std::vector<float>(tokens, 1), heads));
  input->set_scale(1);
  return absl::OkStatus();
}

// With these inputs the state's first row is v from the first token on, so every output is v.
absl::Status ExpectValues(const gdn::v1::Tensor& output, size_t tokens) {
  GDN_ASSIGN_OR_RETURN(const std::vector<float> floats, gdn::TensorToFloats(output));
  std::vector<float> expected;
  for (size_t token = 0; token < tokens; ++token) expected.insert(expected.end(), {1, 2, 3, 4});
  if (floats == expected) return absl::OkStatus();
  return absl::InternalError("the outputs are not v: " + output.ShortDebugString());
}

absl::Status SyncSteps(gdn::Client& client) {
  GDN_ASSIGN_OR_RETURN(const gdn::v1::Session session, client.CreateSession(NewSession("sync")));
  gdn::v1::PrefillRequest prompt;
  prompt.set_session(session.name());
  GDN_RETURN_IF_ERROR(FillIn({3}, prompt.mutable_delta_rule()));
  GDN_ASSIGN_OR_RETURN(const gdn::v1::PrefillResponse reply, client.Prefill(prompt));
  GDN_RETURN_IF_ERROR(ExpectValues(reply.output(), 3));
  GDN_RETURN_IF_ERROR(client.DeleteSession(session.name()));
  const absl::Status gone = client.Prefill(prompt).status();
  if (gdn::ErrorReason(gone) != gdn::reason::kSessionNotFound)
    return absl::InternalError("not gone: " + gone.ToString());
  return absl::OkStatus();
}

// Two sessions' steps at once, as an engine does with two halves of a batch.
absl::Status AsyncSteps(gdn::Client& client) {
  using Reply = absl::StatusOr<gdn::v1::DecodeResponse>;
  gdn::AsyncClient async(client);
  std::vector<std::future<Reply>> replies;
  for (const std::string id : {"first", "second"}) {
    GDN_ASSIGN_OR_RETURN(const gdn::v1::Session session, client.CreateSession(NewSession(id)));
    gdn::v1::DecodeRequest request;
    request.add_sessions(session.name());
    GDN_RETURN_IF_ERROR(FillIn({1, 1}, request.mutable_delta_rule()));
    std::promise<Reply> promise;
    replies.push_back(promise.get_future());
    async.Decode(std::move(request),
                 [promise = std::move(promise)](Reply reply) mutable { promise.set_value(std::move(reply)); });
  }
  for (std::future<Reply>& future : replies) {
    GDN_ASSIGN_OR_RETURN(const gdn::v1::DecodeResponse reply, future.get());
    GDN_RETURN_IF_ERROR(ExpectValues(reply.output(), 1));
  }
  return absl::OkStatus();
}

absl::Status Streams(gdn::Client& client) {
  GDN_ASSIGN_OR_RETURN(const gdn::v1::Session session, client.CreateSession(NewSession("stream")));
  GDN_ASSIGN_OR_RETURN(gdn::DecodeStream stream, client.StreamDecode());
  for (int step = 0; step < 3; ++step) {
    gdn::v1::DecodeRequest request;
    request.add_sessions(session.name());
    GDN_RETURN_IF_ERROR(FillIn({1, 1}, request.mutable_delta_rule()));
    GDN_RETURN_IF_ERROR(stream.Write(std::move(request)));
    GDN_ASSIGN_OR_RETURN(const gdn::v1::DecodeResponse reply, stream.ReadOne());
    GDN_RETURN_IF_ERROR(ExpectValues(reply.output(), 1));
  }
  GDN_RETURN_IF_ERROR(stream.Finish());
  GDN_ASSIGN_OR_RETURN(const std::string file, [&] {
    gdn::v1::ExportStateRequest request;
    request.set_name(session.name());
    return client.ExportState(request);
  }());
  return file.empty() ? absl::InternalError("an empty state file") : client.DeleteSession(session.name());
}

absl::Status Batches(gdn::Client& client) {
  GDN_ASSIGN_OR_RETURN(const auto a, gdn::DurableSession::Create(client, NewSession("a")));
  GDN_ASSIGN_OR_RETURN(const auto b, gdn::DurableSession::Create(client, NewSession("b")));
  gdn::DurableBatch batch(client);
  gdn::v1::DecodeRequest request;
  GDN_RETURN_IF_ERROR(FillIn({2, 1}, request.mutable_delta_rule()));
  GDN_ASSIGN_OR_RETURN(const gdn::DurableBatch::Reply reply, batch.Decode({a.get(), b.get()}, request));
  for (const absl::Status& row : reply.rows) GDN_RETURN_IF_ERROR(row);
  GDN_RETURN_IF_ERROR(ExpectValues(reply.output, 2));
  GDN_RETURN_IF_ERROR(a->Delete());
  return b->Delete();
}

absl::Status Run(const std::string& target) {
  const auto client = gdn::Client::Connect(target);
  GDN_ASSIGN_OR_RETURN(const gdn::v1::GetServerInfoResponse info, client->GetServerInfo());
  std::cout << "server " << info.version() << ", " << info.numerics_id() << "\n";
  GDN_RETURN_IF_ERROR(SyncSteps(*client));
  GDN_RETURN_IF_ERROR(AsyncSteps(*client));
  GDN_RETURN_IF_ERROR(Streams(*client));
  return Batches(*client);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: consumer HOST:PORT\n";
    return 2;
  }
  const absl::Status status = Run(argv[1]);
  std::cout << (status.ok() ? "consumer ok" : status.ToString()) << "\n";
  return status.ok() ? 0 : 1;
}
