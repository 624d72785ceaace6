// Sessions for the length of one command: deleted when they go out of scope, whatever happened.
//
// Thread safety: for one thread at a time. Ownership: owns the sessions on the server; the client must outlive it.
//
//   ScratchSessions sessions(client, "models/qwen");
//   GDN_ASSIGN_OR_RETURN(std::vector<std::string> names, sessions.Create("decode", 8));
//   ...
//   return sessions.DeleteAll();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace gdn {

class ScratchSessions {
 public:
  ScratchSessions(Client& client, std::string model);
  ~ScratchSessions();
  ScratchSessions(const ScratchSessions&) = delete;
  ScratchSessions& operator=(const ScratchSessions&) = delete;

  // One for all of them, with random bits.
  const std::string& affinity() const { return affinity_; }

  // `count` sessions with ids "AFFINITY-PURPOSE-N"; their names.
  absl::StatusOr<std::vector<std::string>> Create(std::string_view purpose, int64_t count);

  // Deletes what was made, waiting for cancelled steps to let go of it; tries all, and returns the first error.
  absl::Status DeleteAll();

 private:
  Client& client_;
  const std::string model_;
  const std::string affinity_;
  std::vector<std::string> names_;
};

}  // namespace gdn
