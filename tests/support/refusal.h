// Checks that calls with bad arguments return INVALID_ARGUMENT with the right message.
//
//   EXPECT_THAT(MakeCpuBackend({.threads = -1}).status(), IsInvalid("threads is -1"));
//   ExpectRefused<GatingParams>(ValidateGating, good, {{"a is null", [](auto& p) { p.a = nullptr; }}});
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"

namespace gdn {

MATCHER_P(IsInvalid, part, std::string("is INVALID_ARGUMENT with a message that holds '") + part + "'") {
  return arg.code() == absl::StatusCode::kInvalidArgument && absl::StrContains(arg.message(), part);
}

// Checks that call(good) succeeds, and that each change makes the call INVALID_ARGUMENT with the change's message.
template <typename Params>
void ExpectRefused(const std::function<absl::Status(const Params&)>& call, const Params& good,
                   std::initializer_list<std::pair<const char*, std::function<void(Params&)>>> changes) {
  EXPECT_EQ(call(good), absl::OkStatus());
  for (const auto& [message, change] : changes) {
    Params params = good;
    change(params);
    EXPECT_THAT(call(params), IsInvalid(message));
  }
}

}  // namespace gdn
