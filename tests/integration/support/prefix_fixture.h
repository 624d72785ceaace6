// Fixture for tests of kept prefixes: prompts of a TokenFeed's tokens, cut into segments, and calls with them.
//
// Thread safety: as for Caller. Ownership: plain values.
//
//   TestServer server(Options());
//   MakeKept(caller, feed, "first", {100, 164});                            // prefilled so, and kept at 164
//   EXPECT_EQ(Create(caller, feed, "a", PrefixOf({100, 164, 200})).reply.prefix_tokens(), 164);
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "client/cpp/prompt_prefix.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn {

inline constexpr int64_t kManyBytes = int64_t{1} << 24;

// Returns the prefix of the feed's tokens with segments that end at `ends`. Different values of `text` share no hash.
inline v1::PromptPrefix PrefixOf(const std::vector<int64_t>& ends, int64_t text = 0) {
  v1::PromptPrefix prefix;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    std::vector<int64_t> ids(static_cast<size_t>(end - begin) + 1);  // the last is in no segment
    std::iota(ids.begin(), ids.end(), 1000 * text + begin);
    *prefix.add_segments() = PromptPrefixOf(ids, end - begin).segments(0);
    begin = end;
  }
  return prefix;
}

class Prefixes : public ::testing::Test {
 protected:
  static GdnServerOptions Options() {
    GdnServerOptions options{.models = TokenFeed::Models()};
    options.memory.prefix_cache_bytes = kManyBytes;
    return options;
  }
  static Outcome<v1::KeepPrefixResponse> Keep(const Caller& caller, const std::string& id,
                                              const v1::PromptPrefix& prefix) {
    v1::KeepPrefixRequest request;
    request.set_name("sessions/" + id);
    *request.mutable_prefix() = prefix;
    Outcome<v1::KeepPrefixResponse> outcome;
    outcome.status = caller.server().stub().KeepPrefix(caller.NewContext().get(), request, &outcome.reply);
    return outcome;
  }
  static int64_t Drop(const Caller& caller) {
    v1::DropPrefixesResponse response;
    EXPECT_TRUE(caller.server().stub().DropPrefixes(caller.NewContext().get(), {}, &response).ok());
    return response.dropped();
  }
  static int Layers(const TokenFeed& feed) { return feed.name() == "model" ? 3 : 2; }
  static Outcome<v1::Session> Create(const Caller& caller, const TokenFeed& feed, const std::string& id,
                                     const v1::PromptPrefix& prefix) {
    v1::CreateSessionRequest request = feed.Creation(id);
    *request.mutable_prefix() = prefix;
    return caller.Create(request);
  }
  // Prefills all layers from `begin` on, with one call for each range between two ends. Returns the outputs end to end.
  static std::string PrefillAll(const Caller& caller, const TokenFeed& feed, const std::string& id, int64_t begin,
                                const std::vector<int64_t>& ends) {
    std::string outputs;
    for (const int64_t end : ends) {
      for (int layer = 0; layer < Layers(feed); ++layer) {
        const auto reply = caller.Prefill(feed.Prefill(id, {begin, end - begin}, layer));
        EXPECT_TRUE(reply.ok()) << id << ": " << reply.status.error_message();
        outputs += reply.reply.output().data();
      }
      begin = end;
    }
    return outputs;
  }
  // Makes a session that has prefilled up to the last end, and keeps its prefix.
  static void MakeKept(const Caller& caller, const TokenFeed& feed, const std::string& id,
                       const std::vector<int64_t>& ends, int64_t text = 0) {
    ASSERT_TRUE(feed.Create(caller, id).ok());
    PrefillAll(caller, feed, id, 0, ends);
    ASSERT_REPLY(const auto kept, Keep(caller, id, PrefixOf(ends, text)));
    EXPECT_TRUE(kept.kept());
    EXPECT_EQ(kept.tokens(), ends.back());
  }
  static v1::PrefixInfo Info(const Caller& caller) { return caller.Info().reply.prefixes(); }
  // Checks that the rest of the prompt and later decodes have the bits of a session that computed the whole prompt.
  static void ExpectTheBitsOf(const Caller& caller, const TokenFeed& feed, const std::string& id, int64_t begin,
                              const std::vector<int64_t>& all, const std::vector<int64_t>& rest) {
    ASSERT_TRUE(feed.Create(caller, id + "-computed").ok());
    PrefillAll(caller, feed, id + "-computed", 0, all);
    EXPECT_EQ(caller.State(id), caller.State(id + "-computed"));
    EXPECT_EQ(PrefillAll(caller, feed, id, begin, rest), PrefillAll(caller, feed, id + "-computed", begin, rest));
    for (int layer = 0; layer < Layers(feed); ++layer) {
      EXPECT_EQ(feed.DecodeAll(caller, id, {300, 20}, layer),
                feed.DecodeAll(caller, id + "-computed", {300, 20}, layer));
    }
    EXPECT_EQ(caller.State(id), caller.State(id + "-computed"));
  }
};

}  // namespace gdn
