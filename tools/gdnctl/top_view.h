// What gdnctl top shows: a server at one moment, and what happened since an earlier one.
//
// Thread safety: free functions on values.
//
//   const TopSample before = *TakeTopSample(client);
//   const TopSample now = *TakeTopSample(client);
//   absl::PrintF("%s", TopView(before, now, {.rows = 24}));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"

namespace gdn {

struct TopSample {
  absl::Time at;
  v1::GetServerInfoResponse info;
  std::vector<v1::Session> sessions;  // the caller's
  v1::TraceCallsResponse traced;      // the caller's calls, where the server keeps them
};

absl::StatusOr<TopSample> TakeTopSample(Client& client);

struct TopViewOptions {
  int rows = 24;      // lines at most; sessions get what the rest leaves
  int columns = 120;  // longer lines are cut
};

// Lines for a terminal, without escape sequences: the server, its tiers, the caller's steps, the caller's busiest
// sessions. Rates are those between the samples; "-" where no time has passed. Steps are those traced that began after
// the earlier sample.
std::string TopView(const TopSample& before, const TopSample& now, const TopViewOptions& options);

}  // namespace gdn
