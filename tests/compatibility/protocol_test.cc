// Messages of released versions mean the same in this one: every message, field, value of an enum and method is still
// there, with its number, name and type. Additions are allowed.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gdn/v1/errors.pb.h"
#include "gdn/v1/service.pb.h"
#include "google/rpc/error_details.pb.h"
#include "tests/compatibility/fixtures.h"
#include "tests/support/temp_folder.h"

namespace gdn::protocol_test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using google::protobuf::Message;
using google::protobuf::ServiceDescriptor;
using nlohmann::json;

// Differences that a client of the older descriptors would notice.
class Differences {
 public:
  explicit Differences(const DescriptorPool& now) : now_(now) {}

  void Compare(const FileDescriptor& then) {
    for (int i = 0; i < then.message_type_count(); ++i) Compare(*then.message_type(i));
    for (int i = 0; i < then.enum_type_count(); ++i) Compare(*then.enum_type(i));
    for (int i = 0; i < then.service_count(); ++i) Compare(*then.service(i));
  }
  const std::vector<std::string>& found() const { return found_; }

 private:
  static std::string TypeOf(const FieldDescriptor& field) {
    std::string type = field.type_name();
    if (field.message_type() != nullptr) absl::StrAppend(&type, " ", field.message_type()->full_name());
    if (field.enum_type() != nullptr) absl::StrAppend(&type, " ", field.enum_type()->full_name());
    // Without presence a zero is not told from an absence, and a oneof's members exclude each other.
    if (field.is_repeated()) absl::StrAppend(&type, " repeated", field.is_packed() ? " packed" : "");
    if (field.has_presence()) absl::StrAppend(&type, " with presence");
    if (field.real_containing_oneof() != nullptr) absl::StrAppend(&type, " of ", field.real_containing_oneof()->name());
    return type;
  }
  void Expect(const std::string& what, const std::string& then, const std::string& now) {
    if (then != now) found_.push_back(absl::StrCat(what, " was ", then, " and is ", now));
  }

  void Compare(const Descriptor& then) {
    const Descriptor* now = now_.FindMessageTypeByName(then.full_name());
    if (now == nullptr) return found_.push_back(absl::StrCat(then.full_name(), " is gone"));
    for (int i = 0; i < then.field_count(); ++i) {
      const FieldDescriptor& field = *then.field(i);
      const std::string what = absl::StrCat(then.full_name(), "'s field ", field.number());
      const FieldDescriptor* same = now->FindFieldByNumber(field.number());
      Expect(what, field.name(), same == nullptr ? "gone" : same->name());
      if (same != nullptr) Expect(what, TypeOf(field), TypeOf(*same));
    }
    for (int i = 0; i < then.nested_type_count(); ++i) Compare(*then.nested_type(i));
    for (int i = 0; i < then.enum_type_count(); ++i) Compare(*then.enum_type(i));
  }
  void Compare(const EnumDescriptor& then) {
    const EnumDescriptor* now = now_.FindEnumTypeByName(then.full_name());
    if (now == nullptr) return found_.push_back(absl::StrCat(then.full_name(), " is gone"));
    for (int i = 0; i < then.value_count(); ++i) {
      const auto* same = now->FindValueByName(then.value(i)->name());
      Expect(then.value(i)->full_name(), absl::StrCat(then.value(i)->number()),
             same == nullptr ? "gone" : absl::StrCat(same->number()));
    }
  }
  void Compare(const ServiceDescriptor& then) {
    const ServiceDescriptor* now = now_.FindServiceByName(then.full_name());
    if (now == nullptr) return found_.push_back(absl::StrCat(then.full_name(), " is gone"));
    for (int i = 0; i < then.method_count(); ++i) {
      const auto text = [](const google::protobuf::MethodDescriptor& method) {
        return absl::StrCat(method.client_streaming() ? "stream " : "", method.input_type()->full_name(), " -> ",
                            method.server_streaming() ? "stream " : "", method.output_type()->full_name());
      };
      const auto* same = now->FindMethodByName(then.method(i)->name());
      Expect(then.method(i)->full_name(), text(*then.method(i)), same == nullptr ? "gone" : text(*same));
    }
  }

  const DescriptorPool& now_;
  std::vector<std::string> found_;
};

// The API's own files, of a set that has what they import too.
bool IsOurs(const std::string& package) { return absl::StartsWith(package, "gdn.") || package == "google.rpc"; }

FileDescriptorSet SetOf(const std::string& version) {
  FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromString(ReadFile(FixturePath(version, "descriptors.binpb"))));
  return set;
}

std::vector<std::string> DifferencesTo(const FileDescriptorSet& then) {
  DescriptorPool pool;
  Differences differences(*DescriptorPool::generated_pool());
  for (const FileDescriptorProto& file : then.file()) {
    const FileDescriptor* built = pool.BuildFile(file);
    EXPECT_NE(built, nullptr) << file.name();
    if (built != nullptr && IsOurs(file.package())) differences.Compare(*built);
  }
  return differences.found();
}

// Makes every field of ours known to this program, also of files that nothing else here uses.
void LinkDescriptors() {
  EXPECT_NE(v1::ErrorReason_descriptor(), nullptr);
  EXPECT_NE(google::rpc::ErrorInfo::descriptor(), nullptr);
}

class Protocol : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { LinkDescriptors(); }
};

TEST_P(Protocol, HasEverythingThatItHadWithItsNumberNameAndType) {
  const std::vector<std::string> found = DifferencesTo(SetOf(GetParam()));
  EXPECT_TRUE(found.empty()) << absl::StrJoin(found, "\n");
}

// The test changes the older descriptors, as if this build had changed, and expects each difference to be reported.
TEST_P(Protocol, PlantedChangesAreReported) {
  const auto file_of = [](FileDescriptorSet& set, const std::string& name) -> FileDescriptorProto& {
    for (FileDescriptorProto& file : *set.mutable_file()) {
      if (file.name() == name) return file;
    }
    ADD_FAILURE() << name;
    return *set.mutable_file(0);
  };
  const auto message_of = [](FileDescriptorProto& file, const std::string& name) -> google::protobuf::DescriptorProto& {
    for (auto& message : *file.mutable_message_type()) {
      if (message.name() == name) return message;
    }
    ADD_FAILURE() << name;
    return *file.mutable_message_type(0);
  };
  struct Plant {
    std::string file;
    std::function<void(FileDescriptorProto&)> change;
    std::string report;
  };
  const std::vector<Plant> plants = {
      {"gdn/v1/tensor.proto", [&](auto& file) { message_of(file, "Tensor").mutable_field(2)->set_number(30); },
       "gdn.v1.Tensor's field 30 was data and is gone"},
      {"gdn/v1/tensor.proto", [&](auto& file) { message_of(file, "Tensor").mutable_field(2)->set_name("bytes"); },
       "gdn.v1.Tensor's field 3 was bytes and is data"},
      {"gdn/v1/tensor.proto",
       [&](auto& file) {
         message_of(file, "SharedRange")
             .mutable_field(1)
             ->set_type(google::protobuf::FieldDescriptorProto::TYPE_SINT64);
       },
       "gdn.v1.SharedRange's field 2 was sint64 and is int64"},
      {"gdn/v1/tensor.proto", [&](auto& file) { file.add_message_type()->set_name("Lost"); }, "gdn.v1.Lost is gone"},
      {"gdn/v1/errors.proto", [&](auto& file) { file.mutable_enum_type(0)->mutable_value(3)->set_number(99); },
       "was 99 and is 3"},
      {"gdn/v1/service.proto",
       [&](auto& file) { file.mutable_service(0)->mutable_method(0)->set_server_streaming(true); },
       "GetServerInfo was gdn.v1.GetServerInfoRequest -> stream gdn.v1.GetServerInfoResponse and is"},
  };
  for (const Plant& plant : plants) {
    FileDescriptorSet set = SetOf(GetParam());
    plant.change(file_of(set, plant.file));
    const std::vector<std::string> found = DifferencesTo(set);
    ASSERT_EQ(found.size(), 1U) << plant.report << "; found: " << absl::StrJoin(found, "\n");
    EXPECT_TRUE(absl::StrContains(found[0], plant.report)) << found[0];
  }
}

// Returns the name of a message that has unknown fields, itself or inside; "" if none has.
std::string Unknown(const Message& message) {
  const auto& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) return message.GetDescriptor()->full_name();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string inner = Unknown(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                       : reflection.GetMessage(message, field));
      if (!inner.empty()) return inner;
    }
  }
  return "";
}

TEST_P(Protocol, BytesOfEveryMessageMeanWhatTheTextBesideThemSays) {
  std::set<std::string> types;
  for (const json& entry : JsonOf(FixturePath(GetParam(), "messages.json"))) {
    const auto type = entry["type"].get<std::string>();
    SCOPED_TRACE(type);
    types.insert(type);
    const std::string bytes = FromBase64(entry["bytes"]);
    const auto parsed = NewMessage(type);
    ASSERT_TRUE(parsed != nullptr && parsed->ParseFromString(bytes));
    EXPECT_EQ(Unknown(*parsed), "");
    const auto read = NewMessage(type);
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
        absl::StrJoin(entry["text"].get<std::vector<std::string>>(), "\n"), read.get()));
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*parsed, *read));
    EXPECT_TRUE(read->SerializeAsString() == bytes) << "this build writes other bytes";
  }
  // Each request and response of each method that there was.
  DescriptorPool pool;
  const FileDescriptorSet set = SetOf(GetParam());
  for (const FileDescriptorProto& file : set.file()) ASSERT_NE(pool.BuildFile(file), nullptr);
  const ServiceDescriptor& service = *pool.FindServiceByName("gdn.v1.GdnService");
  for (int i = 0; i < service.method_count(); ++i) {
    EXPECT_TRUE(types.contains(service.method(i)->input_type()->full_name())) << service.method(i)->name();
    EXPECT_TRUE(types.contains(service.method(i)->output_type()->full_name())) << service.method(i)->name();
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Protocol, ::testing::ValuesIn(FixtureVersions()),
                         [](const auto& version) { return TestNameOf(version.param); });

}  // namespace
}  // namespace gdn::protocol_test
