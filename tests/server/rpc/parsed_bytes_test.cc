// A request is charged for at least the memory that protobuf takes to parse it, whatever its bytes are.
#include "server/rpc/transport/parsed_bytes.h"

#include <grpcpp/support/slice.h>

#include <random>
#include <string>

#include "gdn/v1/session.pb.h"
#include "gdn/v1/state.pb.h"
#include "gtest/gtest.h"

namespace gdn::parsed_bytes_test {
namespace {

// Also of a message that protobuf refuses: it takes memory until then.
template <typename Message>
void ExpectCovered(const std::string& wire, const std::string& what) {
  Message message;
  const bool parsed = message.ParseFromString(wire);
  const grpc::Slice slice(wire);
  const int64_t charged = ParsedBytes(*Message::descriptor(), grpc::ByteBuffer(&slice, 1));
  EXPECT_GE(charged, static_cast<int64_t>(message.SpaceUsedLong())) << what << (parsed ? "" : ", refused");
  EXPECT_LE(charged, 256 + 100 * static_cast<int64_t>(wire.size())) << what;
}

std::string Repeated(const std::string& piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

TEST(ParsedBytes, CoverWhatAMessageIsParsedTo) {
  constexpr int kMany = 100'000;
  v1::ForkSessionRequest fork;
  for (int i = 0; i < kMany; ++i) fork.add_session_ids("");
  ExpectCovered<v1::ForkSessionRequest>(fork.SerializeAsString(), "empty texts");
  fork.clear_session_ids();
  for (int i = 0; i < kMany; ++i) fork.add_session_ids("twenty characters ..");
  ExpectCovered<v1::ForkSessionRequest>(fork.SerializeAsString(), "texts");
  v1::CreateSessionRequest create;
  for (int i = 0; i < kMany; ++i) create.add_initial_states()->mutable_recurrent_state();
  ExpectCovered<v1::CreateSessionRequest>(create.SerializeAsString(), "nested messages");
  create.Clear();
  v1::Tensor& tensor = *create.add_initial_states()->mutable_recurrent_state();
  for (int i = 0; i < kMany; ++i) tensor.add_shape(1);
  ExpectCovered<v1::CreateSessionRequest>(create.SerializeAsString(), "packed numbers");
  // Fields that the message does not know: 100 as a number, as a text, and as groups, beside and within each other.
  ExpectCovered<v1::ForkSessionRequest>(Repeated("\xa0\x06\x01", kMany), "unknown numbers");
  ExpectCovered<v1::ForkSessionRequest>(Repeated(std::string("\xa2\x06\x00", 3), kMany), "unknown texts");
  ExpectCovered<v1::ForkSessionRequest>(Repeated("\xa3\x06\xa4\x06", kMany), "unknown groups");
  ExpectCovered<v1::ForkSessionRequest>("\xa3\x06" + Repeated("\x08\x01", kMany) + "\xa4\x06", "a group of numbers");
  ExpectCovered<v1::ForkSessionRequest>("\xa3\x06" + Repeated("\xab\x06\xac\x06", kMany) + "\xa4\x06", "groups in one");
  ExpectCovered<v1::ForkSessionRequest>(Repeated("\xa3\x06", 1000), "groups that do not end");
}

TEST(ParsedBytes, ChargeATensorLittleMoreThanItsBytesTwice) {
  v1::CreateSessionRequest create;
  for (int i = 0; i < 4; ++i) {
    v1::Tensor& tensor = *create.add_initial_states()->mutable_recurrent_state();
    tensor.add_shape(1 << 18);
    tensor.mutable_data()->resize(1 << 20);
  }
  const grpc::Slice slice(create.SerializeAsString());
  EXPECT_LE(ParsedBytes(*create.descriptor(), grpc::ByteBuffer(&slice, 1)), 2 * (4 << 20) + 4096);
}

TEST(ParsedBytes, CoverGarbage) {
  std::mt19937_64 random(1);
  v1::CreateSessionRequest create;
  for (int i = 0; i < 20; ++i) {
    v1::InitialState& state = *create.add_initial_states();
    state.set_layer(i);
    state.mutable_recurrent_state()->add_shape(i);
    state.mutable_recurrent_state()->set_data("data");
  }
  const std::string whole = create.SerializeAsString();
  for (int i = 0; i < 2000; ++i) {
    std::string wire = whole;
    for (int change = 0; change < 3; ++change) wire[random() % wire.size()] = static_cast<char>(random());
    if (i % 2 == 0) wire.resize(random() % wire.size());
    ExpectCovered<v1::CreateSessionRequest>(wire, "garbage " + std::to_string(i));
  }
}

}  // namespace
}  // namespace gdn::parsed_bytes_test
