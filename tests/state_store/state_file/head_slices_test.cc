// State files cut into slices of value heads and put together again.
#include "state_store/state_file/head_slices.h"

#include <array>
#include <functional>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "state_store/state_file/image.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"

namespace gdn::head_slices_test {
namespace {

using ::testing::HasSubstr;

constexpr HeadSlice kLow{.first = 0, .count = 2, .total = 4};
constexpr HeadSlice kHigh{.first = 2, .count = 2, .total = 4};

class StateFileHeads : public ::testing::Test {
 protected:
  std::string FileOf(const TestSession& session, DType dtype = DType::kF32) {
    return FileBytes(*EncodeStateFile(MakeImage(session, memory_.host, {.base_dtype = dtype}), {}));
  }
  static std::string Slice(const std::string& file, const HeadSlice& heads) {
    auto sliced = SliceStateFile(file, heads);
    EXPECT_TRUE(sliced.ok()) << sliced.status();
    return sliced.ok() ? *std::move(sliced) : "";
  }
  static absl::StatusOr<std::string> Join(const std::vector<std::string>& files) {
    const std::vector<std::string_view> views(files.begin(), files.end());
    return JoinStateFiles(views);
  }
  // A sliced session's file, with something changed.
  std::string Changed(const HeadSlice& heads, const std::function<void(TestSession&)>& change) {
    TestSession session = session_;
    change(session);
    return Slice(FileOf(session), heads);
  }
  static void ExpectMismatch(const absl::Status& status, const std::string& field, const std::string& message) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
    EXPECT_EQ(ErrorMetadata(status)["field"], field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  TestMemory memory_;
  const TestSession session_ = MakeModelSession();
};

// Every tensor but the replies' outputs, and what the metadata say of the session.
void ExpectSameStates(const std::string& a, const std::string& b) {
  const SafetensorsFile file_a = SafetensorsFile::Parse(a).value();
  const SafetensorsFile file_b = SafetensorsFile::Parse(b).value();
  size_t compared = 0;
  for (const auto& [name, entry] : file_a.entries()) {
    if (name.ends_with(".reply")) continue;
    ASSERT_TRUE(file_b.Contains(name)) << name;
    EXPECT_EQ(entry.dtype, file_b.entries().at(name).dtype) << name;
    EXPECT_EQ(entry.shape, file_b.entries().at(name).shape) << name;
    EXPECT_EQ(*file_a.Bytes(name), *file_b.Bytes(name)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 6u);
  for (const char* key : {"dims", "layer_count", "model", "family", "model_fingerprint", "heads", "numerics_id",
                          "log_capacity", "epoch", "accept", "base_dtype", "format_version"}) {
    const auto text = [key](const SafetensorsFile& file) {
      const auto it = file.metadata().find(key);
      return it == file.metadata().end() ? "(none)" : it->second;
    };
    EXPECT_EQ(text(file_a), text(file_b)) << key;
  }
}

TEST_F(StateFileHeads, SlicesJoinToTheBytesThatTheyWereTakenFrom) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string whole = FileOf(session_, dtype);
    const std::string low = Slice(whole, kLow);
    const std::string high = Slice(whole, kHigh);
    EXPECT_LT(low.size(), whole.size());
    for (const auto& files : {std::vector{low, high}, std::vector{high, low}}) {
      GDN_ASSERT_OK_AND_ASSIGN(const std::string joined, Join(files));
      ExpectSameStates(whole, joined);
    }
  }
}

TEST_F(StateFileHeads, ASliceHasTheValuesOfItsHeads) {
  const std::string sliced = Slice(FileOf(session_), kHigh);
  GDN_ASSERT_OK_AND_ASSIGN(const StateFile file, ParseStateFile(sliced));
  const LayerDims& d = kModelDims;
  EXPECT_EQ(file.header.dims, SliceDims(d, kHigh));
  EXPECT_EQ(file.header.slice.heads, kHigh);
  EXPECT_EQ(file.header.slice.model_fingerprint, session_.header.fingerprint);
  EXPECT_EQ(file.header.fingerprint, SliceFingerprint(session_.header.fingerprint, kHigh));
  EXPECT_EQ(file.layer_count, 12);
  ASSERT_EQ(file.layers.size(), session_.layers.size());
  for (size_t l = 0; l < file.layers.size(); ++l) {
    const TestLayer& whole = session_.layers[l];
    const SlotView& view = file.layers[l].view;
    EXPECT_EQ(file.layers[l].extent, whole.extent);
    const auto base = static_cast<int64_t>(d.key_dim) * d.value_dim;
    EXPECT_EQ(view.base[0], whole.base[static_cast<size_t>(2 * base)]);
    EXPECT_EQ(static_cast<int64_t>(view.base.size()), 2 * base);
    const auto entries = static_cast<size_t>(whole.extent.log_length + whole.extent.draft_length);
    for (size_t n = 0; n < entries; ++n) {
      EXPECT_EQ(view.log_k[n * 6], whole.log_k[n * 12 + 6]);        // key head 1 of 2, K = 6
      EXPECT_EQ(view.log_u[n * 10 + 5], whole.log_u[n * 20 + 15]);  // value head 3 of 4, V = 5
      EXPECT_EQ(view.log_g[n * 2], whole.log_g[n * 4 + 2]);
    }
    // Channels: q of key head 1 at 6, k of it at 12 + 6, v of value head 2 at 24 + 10; 3 columns each.
    ASSERT_EQ(view.conv.size(), 22u * 3u);
    EXPECT_EQ(view.conv[0], whole.conv[6 * 3]);
    EXPECT_EQ(view.conv[6 * 3 + 2], whole.conv[18 * 3 + 2]);
    EXPECT_EQ(view.conv[12 * 3 + 1], whole.conv[34 * 3 + 1]);
    EXPECT_EQ(view.conv[21 * 3], whole.conv[43 * 3]);
  }
}

TEST_F(StateFileHeads, StoredRepliesLoseTheirOutputs) {
  const std::string sliced = Slice(FileOf(session_), kLow);
  GDN_ASSERT_OK_AND_ASSIGN(const StateFile file, ParseStateFile(sliced));
  int replies = 0;
  for (size_t l = 0; l < file.layers.size(); ++l) {
    if (session_.layers[l].reply == nullptr) continue;
    ++replies;
    ASSERT_NE(file.layers[l].reply, nullptr);
    EXPECT_EQ(file.layers[l].reply->request_id, session_.layers[l].reply->request_id);
    EXPECT_TRUE(file.layers[l].reply->output_dropped);
  }
  EXPECT_EQ(replies, 2);
}

TEST_F(StateFileHeads, ASliceOfASliceIsTheSliceOfTheWhole) {
  TestSession session = session_;
  session.header.dims.key_heads = 4;  // one value head a key head
  Random random(3);
  for (TestLayer& layer : session.layers) {
    layer = MakeLayer(session.header.dims, layer.layer, layer.extent, random);
    layer.kind = InputKind::kHiddenStates;
  }
  const std::string whole = FileOf(session);
  const HeadSlice three{.first = 1, .count = 3, .total = 4};
  const HeadSlice one{.first = 2, .count = 1, .total = 4};
  ExpectSameStates(Slice(Slice(whole, three), one), Slice(whole, one));
  GDN_ASSERT_OK_AND_ASSIGN(const std::string joined,
                           Join({Slice(whole, three), Slice(whole, {.first = 0, .count = 1, .total = 4})}));
  ExpectSameStates(joined, whole);
}

TEST_F(StateFileHeads, HeadsThatAFileHasNotAreRefused) {
  const std::string whole = FileOf(session_);
  const auto heads = [&](const std::string& file, const HeadSlice& slice, const std::string& message) {
    ExpectMismatch(SliceStateFile(file, slice).status(), "heads", message);
  };
  heads(whole, {.first = 0, .count = 1, .total = 4}, "cut the 2 value heads");
  heads(whole, {.first = 0, .count = 2, .total = 8}, "the state file's model has 4");
  heads(whole, {.first = 2, .count = 4, .total = 4}, "not all in the state file");
  heads(Slice(whole, kLow), kHigh, "not all in the state file, which has 0-1/4");
  heads(FileOf(MakeOperatorSession()), {.first = 0, .count = 1, .total = 3}, "a bare operator");
}

TEST_F(StateFileHeads, AnAcceptThatEachServerKnowsByAnotherIdHasNoneInTheWhole) {
  const std::string other = Changed(kHigh, [](TestSession& s) { s.header.accept_request_id = "other"; });
  GDN_ASSERT_OK_AND_ASSIGN(const std::string joined, Join({Slice(FileOf(session_), kLow), other}));
  GDN_ASSERT_OK_AND_ASSIGN(const StateFile file, ParseStateFile(joined));
  EXPECT_EQ(file.header.accept_request_id, "");
  EXPECT_EQ(file.header.accepted_tokens, 0);
}

TEST_F(StateFileHeads, FilesThatAreNotTheSlicesOfOneSessionAreRefused) {
  const std::string low = Slice(FileOf(session_), kLow);
  const std::string high = Slice(FileOf(session_), kHigh);
  const auto with_high = [&](const std::function<void(TestSession&)>& change) {
    return Join({low, Changed(kHigh, change)}).status();
  };
  ExpectMismatch(Join({}).status(), "heads", "no files");
  ExpectMismatch(Join({low}).status(), "heads", "value heads 2 to 3 are in none of the files");
  ExpectMismatch(Join({high}).status(), "heads", "value heads 0 to 1 are in none of the files");
  ExpectMismatch(Join({low, low, high}).status(), "heads", "value heads 0 to 1 are in two of the files");
  ExpectMismatch(with_high([](TestSession& s) { s.header.fingerprint = std::string(32, 'e'); }), "model_fingerprint",
                 "different models");
  ExpectMismatch(with_high([](TestSession& s) { ++s.layers[1].extent.token_count; }), "layer.2", "tokens");
  ExpectMismatch(with_high([](TestSession& s) { s.layers.erase(s.layers.begin()); }), "layer.0", "none in another");
  ExpectMismatch(with_high([](TestSession& s) { s.layers.pop_back(); }), "layer.11", "none in another");
  const auto other_step = [](TestSession& s) {
    s.layers[1].kind = InputKind::kHiddenStates;
    StoredReply reply = *s.layers[1].reply;
    reply.payload.low ^= 1;
    s.layers[1].reply = std::make_shared<const StoredReply>(std::move(reply));
  };
  ExpectMismatch(Join({Changed(kLow, [](TestSession& s) { s.layers[1].kind = InputKind::kHiddenStates; }),
                       Changed(kHigh, other_step)})
                     .status(),
                 "layer.2", "last step");
  const auto other_kind = [](TestSession& s) {
    s.layers[1].kind = InputKind::kProjected;
    s.layers[1].reply = nullptr;  // outputs of that kind have another length
  };
  ExpectMismatch(with_high(other_kind), "layer.2", "last step");
  ExpectMismatch(with_high([](TestSession& s) { ++s.header.accepted_tokens; }), "accept", "AcceptTokens");
  ExpectMismatch(Join({low, Slice(FileOf(session_, DType::kBF16), kHigh)}).status(), "base_dtype", "BF16");
}

TEST_F(StateFileHeads, AReplyIsKeptWhereAllSlicesKnowItsRequest) {
  const std::string low = Slice(FileOf(session_), kLow);
  const auto ids = [&](const std::string& high) {
    auto joined = Join({low, high});
    EXPECT_TRUE(joined.ok()) << joined.status();
    const StateFile file = ParseStateFile(*joined).value();
    std::vector<std::string> found;
    for (const StateFileLayer& layer : file.layers) found.push_back(layer.reply ? layer.reply->request_id : "");
    return found;
  };
  EXPECT_EQ(ids(Slice(FileOf(session_), kHigh)), (std::vector<std::string>{"", "step-41", "step-1"}));
  EXPECT_EQ(
      ids(Changed(kHigh, [](TestSession& s) { s.layers[1].reply = MakeReply("other", RepliedBytes(kModelDims, 1)); })),
      (std::vector<std::string>{"", "", "step-1"}));
  EXPECT_EQ(ids(Changed(kHigh, [](TestSession& s) { s.layers[2].reply = nullptr; })),
            (std::vector<std::string>{"", "step-41", ""}));
}

TEST_F(StateFileHeads, OfServersWithOtherNumericsTheJoinedFileHasNone) {
  const std::string low = Slice(FileOf(session_), kLow);
  GDN_ASSERT_OK_AND_ASSIGN(const std::string joined, Join({low, Changed(kHigh, [](TestSession& s) {
                                                             s.numerics_id = "gpu/1";
                                                             s.header.epoch += 5;
                                                           })}));
  GDN_ASSERT_OK_AND_ASSIGN(const StateFile file, ParseStateFile(joined));
  EXPECT_EQ(file.numerics_id, "");
  EXPECT_EQ(file.header.epoch, session_.header.epoch + 5);
}

TEST_F(StateFileHeads, AnEntryThatCannotBeIsRefused) {
  const std::string sliced = Slice(FileOf(session_), kHigh);
  const SafetensorsFile parsed = SafetensorsFile::Parse(sliced).value();
  const std::string fingerprint = session_.header.fingerprint;
  const auto read = [&](const std::string& heads) {
    auto metadata = parsed.metadata();
    for (const char* key : {"checksums", "header_checksum"}) metadata.erase(key);
    metadata["format_version"] = "1";
    metadata["heads"] = heads;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, entry] : parsed.entries()) tensors.push_back({name, parsed.Tensor(name).value()});
    const std::string bytes = SerializeSafetensors(tensors, metadata).value();
    return ParseStateFile(bytes).status();
  };
  const auto entry = [&](const std::string& first, const std::string& count, const std::string& total) {
    return StrCat("{\"first\":", first, ",\"count\":", count, ",\"total\":", total, ",\"model_fingerprint\":\"",
                  fingerprint, "\"}");
  };
  EXPECT_TRUE(read(entry("2", "2", "4")).ok()) << read(entry("2", "2", "4"));
  for (const std::string& heads :
       {std::string("x"), std::string("[]"), entry("-2", "2", "4"), entry("2", "2", "99999"), entry("2", "4", "4"),
        entry("1", "2", "4"), entry("4", "2", "4"), entry("0", "2", "4"), entry("0", "2", "2"), entry("2", "2", "5"),
        entry("\"2\"", "2", "4"), std::string("{\"first\":2,\"count\":2,\"total\":4}")}) {
    EXPECT_EQ(ErrorReason(read(heads)), reason::kInvalidStateFile) << heads;
  }
}

TEST_F(StateFileHeads, AFileOfMoreHeadsHasThoseOfASlice) {
  const std::string whole_bytes = FileOf(session_);
  GDN_ASSERT_OK_AND_ASSIGN(const StateFile whole, ParseStateFile(whole_bytes));
  const ModelSlice low{.heads = kLow, .model_fingerprint = session_.header.fingerprint};
  EXPECT_TRUE(HasHeads(whole, low));
  EXPECT_FALSE(HasHeads(whole, {}));
  EXPECT_FALSE(HasHeads(whole, {.heads = kLow, .model_fingerprint = std::string(32, 'e')}));
  EXPECT_FALSE(HasHeads(
      whole, {.heads = {.first = 0, .count = 2, .total = 8}, .model_fingerprint = session_.header.fingerprint}));
  const std::string low_bytes = Slice(whole_bytes, kLow);
  GDN_ASSERT_OK_AND_ASSIGN(const StateFile sliced, ParseStateFile(low_bytes));
  EXPECT_FALSE(HasHeads(sliced, low));  // nothing to take
  EXPECT_FALSE(HasHeads(sliced, {.heads = kHigh, .model_fingerprint = session_.header.fingerprint}));
}

}  // namespace
}  // namespace gdn::head_slices_test
