#include "tests/compatibility/fixtures.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "tests/support/compare.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_backend.h"

namespace gdn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;
using nlohmann::json;

constexpr char kRoot[] = GDN_SOURCE_DIR "/tests/compatibility";
constexpr std::chrono::minutes kLongestCall{2};  // a deadline, not a measurement

// Fields that tell of the server and not of the session.
const std::set<std::string> kOfTheServer = {"compute_time_us", "durable_token_count", "durable_token_counts"};
// Refusals that come before anything is applied, and that pass.
const std::set<std::string> kPassing = {"TIER_UNAVAILABLE", "SESSION_MOVED", "NODE_LEASE_LAPSED"};

// Removes from `message`, wherever it is, what tells of the server, and tensors' bytes. Returns these in order.
std::vector<std::string> TakeTensors(Message& message) {
  std::vector<std::string> tensors;
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (kOfTheServer.contains(field->name())) {
      reflection.ClearField(&message, field);
    } else if (field->full_name() == "gdn.v1.Tensor.data") {
      tensors.push_back(reflection.GetString(message, field));
      reflection.ClearField(&message, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
      for (int i = 0; i < count; ++i) {
        Message& inner = field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, i)
                                              : *reflection.MutableMessage(&message, field);
        for (std::string& tensor : TakeTensors(inner)) tensors.push_back(std::move(tensor));
      }
    }
  }
  return tensors;
}

std::vector<float> FloatsOf(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

void ExpectEqual(Message& expected, Message& actual) {
  std::string differences;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&differences);
  EXPECT_TRUE(differencer.Compare(expected, actual)) << differences;
}

// `tolerance` 0: the same bits.
void ExpectReply(const std::string& method, const std::string& expected_bytes, const std::string& actual_bytes,
                 double tolerance) {
  const auto expected = NewMessage("gdn.v1." + method + "Response");
  ASSERT_TRUE(expected != nullptr && expected->ParseFromString(expected_bytes));
  const auto actual = NewMessage("gdn.v1." + method + "Response");
  ASSERT_TRUE(actual->ParseFromString(actual_bytes));
  const std::vector<std::string> expected_tensors = TakeTensors(*expected);
  const std::vector<std::string> tensors = TakeTensors(*actual);
  ExpectEqual(*expected, *actual);
  ASSERT_EQ(tensors.size(), expected_tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<float> values = FloatsOf(tensors[i]);
    const std::vector<float> expected_values = FloatsOf(expected_tensors[i]);
    EXPECT_LE(RelativeNormError(values, expected_values), std::max(tolerance, kSplitTolerance));
    if (tolerance == 0) {
      EXPECT_TRUE(tensors[i] == expected_tensors[i]) << "other bits, on the same numerics_id";
    }
  }
}

void ExpectLayers(const json& expected, const google::protobuf::RepeatedPtrField<v1::LayerState>& layers) {
  ASSERT_EQ(static_cast<size_t>(layers.size()), expected.size());
  for (int i = 0; i < layers.size(); ++i) {
    v1::LayerState wanted;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(expected[static_cast<size_t>(i)].dump(), &wanted).ok());
    v1::LayerState layer = layers[i];
    TakeTensors(layer);
    ExpectEqual(wanted, layer);
  }
}

// Getting a session brings it here, so it too may have to wait for stores.
Outcome<std::string> GetWithBytes(const Caller& caller, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_name("sessions/" + id);
  return CallWithBytes(caller, "GetSession", request.SerializeAsString());
}

void ExpectCheckpoints(const Caller& caller, const std::string& id, const json& expected) {
  ASSERT_REPLY(const auto listed, caller.Checkpoints(id));
  for (const json& wanted : expected) {
    SCOPED_TRACE("checkpoint " + wanted["id"].get<std::string>());
    const auto found = std::ranges::find(listed.checkpoints(), wanted["id"].get<std::string>(),
                                         [](const v1::Checkpoint& checkpoint) { return checkpoint.checkpoint_id(); });
    ASSERT_NE(found, listed.checkpoints().end());
    EXPECT_EQ(found->epoch(), wanted["epoch"].get<int64_t>());
    ExpectLayers(wanted["layers"], found->layers());
  }
}

void ExpectStep(const Caller& caller, const json& step, double tolerance) {
  const auto method = step["method"].get<std::string>();
  const auto outcome = CallWithBytes(caller, method, FromBase64(step["request"]));
  if (step.contains("refused")) {
    EXPECT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.reason(), step["refused"].get<std::string>()) << outcome.status.error_message();
    return;
  }
  ASSERT_TRUE(outcome.ok()) << outcome.status.error_message();
  if (step.contains("response")) ExpectReply(method, FromBase64(step["response"]), outcome.reply, tolerance);
}

}  // namespace

std::vector<std::string> FixtureVersions() {
  std::vector<std::string> versions;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot)) {
    if (entry.is_directory() && entry.path().filename().string().starts_with("v")) {
      versions.push_back(entry.path().filename().string());
    }
  }
  EXPECT_FALSE(versions.empty()) << kRoot;
  std::ranges::sort(versions);
  return versions;
}

std::vector<std::string> FixtureBackends() {
  std::vector<std::string> backends = HostBackends();
  std::erase(backends, "host32");  // its states are those of host64
  return backends;
}

std::string TestNameOf(const std::string& version) { return absl::StrReplaceAll(version, {{".", "_"}}); }

std::string FixturePath(const std::string& version, const std::string& file) {
  return std::string(kRoot) + "/" + version + "/" + file;
}

json JsonOf(const std::string& path) { return json::parse(ReadFile(path)); }

std::string FromBase64(const std::string& text) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(text, &bytes));
  return bytes;
}

std::unique_ptr<Message> NewMessage(const std::string& type) {
  const Descriptor* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(type);
  EXPECT_NE(descriptor, nullptr) << "there is no message " << type << " any more";
  if (descriptor == nullptr) return nullptr;
  auto& factory = *google::protobuf::MessageFactory::generated_factory();
  return std::unique_ptr<Message>(factory.GetPrototype(descriptor)->New());
}

Outcome<std::string> CallWithBytes(const Caller& caller, const std::string& method, const std::string& request) {
  const auto once = [&] {
    Outcome<std::string> outcome;
    const auto context = caller.NewContext();
    context->set_deadline(std::chrono::system_clock::now() + kLongestCall);
    const grpc::Slice slice(request);
    const grpc::ByteBuffer buffer(&slice, 1);
    grpc::ByteBuffer reply;
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(caller.server().channel());
    const auto call = stub.PrepareUnaryCall(context.get(), "/gdn.v1.GdnService/" + method, buffer, &queue);
    call->StartCall();
    call->Finish(&reply, &outcome.status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok) && ok);
    std::vector<grpc::Slice> slices;
    if (outcome.ok() && reply.Dump(&slices).ok()) {
      for (const grpc::Slice& part : slices) {
        outcome.reply.append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
    }
    return outcome;
  };
  auto outcome = once();
  for (int i = 0; i < 1000 && kPassing.contains(outcome.reason()); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    outcome = once();
  }
  return outcome;
}

void ExpectSession(const Caller& caller, const json& session, const FixtureNumerics& numerics) {
  const auto id = session["name"].get<std::string>();
  SCOPED_TRACE("session " + id);
  const auto got = GetWithBytes(caller, id);
  if (session.value("gone", false)) {
    EXPECT_EQ(got.reason(), "SESSION_NOT_FOUND") << got.status.error_message();
    return;
  }
  ASSERT_TRUE(got.ok()) << got.status.error_message();
  v1::GetSessionResponse response;
  ASSERT_TRUE(response.ParseFromString(got.reply));
  const json& epoch = session["epoch"];
  if (epoch.contains("is")) {
    EXPECT_EQ(response.session().epoch(), epoch["is"].get<int64_t>());
  } else {
    EXPECT_GT(response.session().epoch(), epoch["above"].get<int64_t>());
  }
  ExpectLayers(session["layers"], response.session().layers());
  if (session.contains("checkpoints")) ExpectCheckpoints(caller, id, session["checkpoints"]);

  ASSERT_REPLY(const auto info, caller.Info());
  const bool same_bits = info.numerics_id() == numerics.numerics_id;
  int number = 0;
  for (const json& step : session["steps"]) {
    SCOPED_TRACE("step " + std::to_string(number++) + ", a " + step["method"].get<std::string>());
    // A stored reply is what was computed then, whatever computes now.
    ExpectStep(caller, step, same_bits || step.value("stored_reply", false) ? 0 : numerics.tolerance);
    if (testing::Test::HasFailure()) return;  // what follows would be about another state
  }
}

}  // namespace gdn
