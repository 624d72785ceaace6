// A history of the answers to clients, as lines of JSON, and its checker. From the history alone, the checker finds out
// if an older state was used, a step was applied twice, or an answer was wrong. README.md here describes the lines.
//
// Thread safety: HistoryWriter from any thread; CheckHistory is a free function. Ownership: the writer owns its file.
//
//   GDN_ASSIGN_OR_RETURN(auto writer, HistoryWriter::Create(folder + "/history.jsonl"));
//   writer->Add({.run = "tested", .session = "a", .call = "decode", .layer = 0, .inputs = {"5f"}, .output = "07"});
//   const HistoryReport report = CheckHistory(path);
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

// One answered call.
struct HistoryLine {
  std::string run = {};
  std::string session = {};
  std::string call;
  std::string form = {};
  std::string first = {};
  int32_t layer = -1;
  int64_t tokens = 0;
  std::vector<std::string> inputs = {};
  std::vector<int32_t> parents = {};
  std::vector<int32_t> path = {};
  std::string output = {};
  std::string to = {};
  std::map<int32_t, int64_t> counts = {};
};

class HistoryWriter {
 public:
  static absl::StatusOr<std::unique_ptr<HistoryWriter>> Create(const std::string& path);
  void Add(const HistoryLine& line);

 private:
  explicit HistoryWriter(const std::string& path) : file_(path) {}

  absl::Mutex mu_;
  std::ofstream file_ ABSL_GUARDED_BY(mu_);
};

struct HistoryReport {
  int64_t lines = 0;
  int64_t compared = 0;                                      // outputs compared with the undisturbed run's
  int64_t lost = 0;                                          // sessions that a client reported as lost
  std::map<std::string, std::map<std::string, int>> firsts;  // numbers of first calls after a crash, by form and call
  std::vector<std::string> faults;
};

// Checks the files, one after the other, as one history.
HistoryReport CheckHistory(const std::vector<std::string>& paths);

}  // namespace gdn
