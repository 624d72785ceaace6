// The figures of gdnctl top: a server's state at one moment, and the changes since an earlier moment.
//
// Thread safety: free functions on values.
//
//   const TopSample before = *TakeTopSample(client);
//   const TopSample now = *TakeTopSample(client);
//   const TopFigures figures = FiguresBetween(before, now);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"

namespace gdn {

struct TopSample {
  absl::Time at;
  v1::GetServerInfoResponse info;
  std::vector<v1::Session> sessions;  // all sessions of the caller
  v1::TraceCallsResponse traced;      // the caller's calls, if the server keeps them
};

// Takes a sample by three calls. Errors of Client.
absl::StatusOr<TopSample> TakeTopSample(Client& client);

// Rates are per second, and absent if no time has passed between the samples.
struct TopFigures {
  struct Tier {
    v1::TierInfo info;
    std::optional<double> stores, loads;
  };
  struct Method {
    std::string name;  // name of the RPC, such as "Decode"
    std::optional<double> calls, tokens;
    double rows = 0;  // mean number of rows of a call
    double queue_p50_ms = 0, p50_ms = 0, p99_ms = 0;
  };
  struct Session {
    v1::Session session;
    int64_t count = 0;             // tokens of the layer that has seen most
    std::optional<double> tokens;  // per second
  };

  absl::Time at;
  double seconds = 0;  // between the samples
  v1::GetServerInfoResponse info;
  std::vector<Tier> tiers;
  bool traced = false;            // the server records calls
  std::vector<Method> methods;    // over the calls that began after the earlier sample
  std::vector<Session> sessions;  // the busiest first
  std::optional<double> tokens;   // tokens per second of all the caller's sessions
};

// Returns the figures of `now`, and the changes since `before`. A counter that has become smaller counts as unchanged.
TopFigures FiguresBetween(const TopSample& before, const TopSample& now);

// Returns one JSON document: the server's info with the API's field names, and the figures. INTERNAL if the info cannot
// be printed as JSON.
absl::StatusOr<std::string> TopJson(const TopFigures& figures);

}  // namespace gdn
