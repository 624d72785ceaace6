#include "tests/integration/test_server.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/synchronization/mutex.h"
#include "server/rpc/session_calls.h"
#include "server/validation/names.h"
#include "tests/support/test_backend.h"

namespace gdn {

TestServer::TestServer(const TestServerOptions& options) {
  backend_ = MakeTestBackend(options.threads);
  for (const auto& [name, directory] : options.models) {
    auto model = LoadModel(*backend_, name, directory);
    EXPECT_TRUE(model.ok()) << model.status();
    catalog_.emplace(name, ServedModel{.name = name,
                                       .family = model->config().family,
                                       .dims = model->config().dims,
                                       .num_layers = model->config().num_layers,
                                       .weight_dtype = model->weight_dtype(),
                                       .fingerprint = model->fingerprint(),
                                       .layers = model->layers()});
    loaded_.push_back(*std::move(model));
  }
  auto states = StateService::Make(*backend_, {.device_bytes = options.state_bytes,
                                               .max_draft = options.limits.max_draft,
                                               .stored_reply_bytes = options.stored_reply_bytes,
                                               .host_bytes = options.host_bytes,
                                               .disk_dir = options.disk_dir,
                                               .redis = options.redis,
                                               .policy = options.policy,
                                               .housekeeping = options.housekeeping});
  EXPECT_TRUE(states.ok()) << states.status();
  states_ = *std::move(states);
  batcher_ = std::make_unique<Batcher>(*backend_, BatcherOptions{.max_queued_steps = options.max_queued_steps,
                                                                 .max_batch_rows = options.limits.max_batch});
  states_->BindDevice([this] { return batcher_->device_status(); },
                      [this](const absl::Status& status) { batcher_->NoteDeviceFailure(status); });
  context_ = std::make_unique<ServiceContext>(ServiceContext{.models = catalog_,
                                                             .sessions = states_->sessions(),
                                                             .store = states_->store(),
                                                             .residency = states_->residency(),
                                                             .checkpointer = states_->checkpointer(),
                                                             .environment = states_->environment(),
                                                             .batcher = *batcher_,
                                                             .backend = backend_->info(),
                                                             .version = "test",
                                                             .limits = options.limits,
                                                             .max_queued_steps = options.max_queued_steps});
  const auto recovered = states_->Recover([this](const std::string& model) -> std::optional<SessionSpec> {
    auto spec = SpecOfModel(*context_, ModelName(model));
    return spec.ok() ? std::optional(*std::move(spec)) : std::nullopt;
  });
  EXPECT_TRUE(recovered.ok()) << recovered.status();
  context_->recovered_sessions = recovered->sessions;
  server_ = RpcServer::Start(*context_, "127.0.0.1:0").value();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // servers come and go on ports that are used again
  channel_ = grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::GdnService::NewStub(channel_);
}

TestServer::~TestServer() {
  server_ = nullptr;
  states_->BindDevice(nullptr, nullptr);
}

bool TestServer::Drain() {
  server_->Stop(absl::Seconds(10));
  return states_->Drain();
}

std::string TestServer::address() const { return "127.0.0.1:" + std::to_string(server_->port()); }

struct EngineBlocker::Shared {
  absl::Mutex mu;
  bool held ABSL_GUARDED_BY(mu) = false;
  bool released ABSL_GUARDED_BY(mu) = false;
};

EngineBlocker::EngineBlocker(Batcher& batcher) : shared_(std::make_shared<Shared>()) {
  batcher.Post(
      [shared = shared_](Backend&) {
        absl::MutexLock lock(&shared->mu);
        shared->held = true;
        shared->mu.Await(absl::Condition(&shared->released));
        return absl::OkStatus();
      },
      [](const absl::Status&) {});
  absl::MutexLock lock(&shared_->mu);
  shared_->mu.Await(absl::Condition(&shared_->held));
}

void EngineBlocker::Release() {
  absl::MutexLock lock(&shared_->mu);
  shared_->released = true;
}

std::string GoldenPath(const std::string& name) { return std::string(GDN_SOURCE_DIR "/tests/golden/") + name; }

google::rpc::ErrorInfo ErrorInfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) {
    if (detail.UnpackTo(&info)) return info;
  }
  return info;
}

google::rpc::ErrorInfo ErrorInfoOf(const grpc::Status& status) {
  google::rpc::Status rpc;
  return rpc.ParseFromString(status.error_details()) ? ErrorInfoOf(rpc) : google::rpc::ErrorInfo();
}

v1::Tensor MakeTensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  for (const int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

std::vector<float> TensorFloats(const v1::Tensor& tensor) {
  EXPECT_EQ(tensor.dtype(), v1::DTYPE_F32);
  std::vector<float> values(tensor.data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
  return values;
}

}  // namespace gdn
