#include "tests/soak/history.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

using Json = nlohmann::json;

// A layer's history: a digest of its calls, without the session's name. Equal digests mean equal next outputs.
struct LayerHistory {
  int64_t count = 0;
  uint64_t taken = 0;
  std::vector<std::string> draft = {};  // inputs of the tokens that wait for a verdict
  std::vector<int32_t> parents = {};

  void Take(const std::string& call, const std::string& input) { taken = Hash64(StrCat(taken, " ", call, " ", input)); }
  std::string Text() const {
    return StrCat(count, " ", taken, " ", absl::StrJoin(draft, ","), " ", absl::StrJoin(parents, ","));
  }
};
using SessionHistory = std::map<int32_t, LayerHistory>;

class Checker {
 public:
  void Read(const std::string& path) {
    std::ifstream file(path);
    if (!file) return Fault(path, "cannot be read");
    std::string text;
    for (int64_t number = 1; std::getline(file, text); ++number) {
      where_ = StrCat(path, ":", number);
      const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!line.is_object()) {
        Fault(where_, "is no JSON object");
        continue;
      }
      ++report_.lines;
      try {
        Take(line);
      } catch (const Json::exception& error) {
        Fault(where_, error.what());
      }
    }
  }

  HistoryReport Finish() {
    for (const Output& output : tested_) {
      const auto truth = truth_.find(output.key);
      if (truth == truth_.end()) {
        Fault(output.where, "the undisturbed run has not made this call at this state");
      } else if (truth->second != output.digest) {
        Fault(output.where, StrCat("the output is ", output.digest, ", the undisturbed run's is ", truth->second));
      } else {
        ++report_.compared;
      }
    }
    return std::move(report_);
  }

 private:
  struct Output {
    std::string where, key, digest;
  };

  void Fault(const std::string& where, const std::string& what) { report_.faults.push_back(StrCat(where, ": ", what)); }

  // One output of a call that was made at this state.
  void NoteOutput(const Json& line, const std::string& run, const std::string& key) {
    const std::string digest = line.value("output", "");
    if (run == "tested") return tested_.push_back({where_, key, digest});
    const auto [known, added] = truth_.emplace(key, digest);
    if (!added && known->second != digest) Fault(where_, "the undisturbed run has two outputs of one state");
  }

  static std::string StateText(const SessionHistory& session) {
    std::string text;
    for (const auto& [index, layer] : session) text += StrCat(index, ": ", layer.Text(), "; ");
    return text;
  }

  void TakeStep(const Json& line, const std::string& run, SessionHistory& session) {
    const std::string call = line.at("call");
    const int32_t index = line.at("layer");
    LayerHistory& layer = session[index];
    const auto inputs = line.at("inputs").get<std::vector<std::string>>();
    const auto parents = line.value("parents", std::vector<int32_t>());
    NoteOutput(
        line, run,
        StrCat(call, " ", index, " ", layer.Text(), " ", absl::StrJoin(inputs, ","), " ", absl::StrJoin(parents, ",")));
    if (call == "draft") {
      layer.draft = inputs;
      layer.parents = parents;
      return;
    }
    const int64_t tokens = line.at("tokens");
    layer.count += tokens;
    for (const std::string& input : inputs) {
      if (tokens > 0) layer.Take(call, input);
    }
  }

  void TakeAccept(const Json& line, SessionHistory& session) {
    const auto path = line.at("path").get<std::vector<size_t>>();
    for (auto& [index, layer] : session) {
      if (layer.draft.empty()) continue;
      for (const size_t token : path) {
        if (token >= layer.draft.size()) return Fault(where_, "accepts a token that the draft does not have");
        layer.Take("decode", layer.draft[token]);
        ++layer.count;
      }
      layer.draft.clear();
      layer.parents.clear();
    }
  }

  void Take(const Json& line) {
    const std::string run = line.at("run"), name = line.at("session"), call = line.at("call");
    if (run != "tested" && run != "truth") return Fault(where_, StrCat("its run is '", run, "'"));
    if (const std::string first = line.value("first", ""); !first.empty() && run == "tested") {
      ++report_.firsts[line.value("form", "")][first];
    }
    const std::string key = StrCat(run, " ", name);
    const std::string to = line.value("to", "");
    if (call == "create") {
      sessions_[key] = SessionHistory();
    } else if (call == "begin") {
      const auto kept = kept_.find(StrCat(run, " ", to));
      if (kept == kept_.end()) return Fault(where_, "begins with a prefix that was not kept");
      sessions_[key] = kept->second;
    }
    const auto found = sessions_.find(key);
    if (found == sessions_.end()) return Fault(where_, "the session was not made, or has ended");
    SessionHistory& session = found->second;
    if (call == "prefill" || call == "decode" || call == "draft") {
      TakeStep(line, run, session);
    } else if (call == "accept") {
      TakeAccept(line, session);
    } else if (call == "export") {
      NoteOutput(line, run, StrCat("export ", StateText(session)));
    } else if (call == "fork") {
      sessions_[StrCat(run, " ", to)] = session;
    } else if (call == "checkpoint") {
      checkpoints_[key + " " + to] = session;
    } else if (call == "restore") {
      const auto checkpoint = checkpoints_.find(key + " " + to);
      if (checkpoint == checkpoints_.end()) return Fault(where_, "restores a checkpoint that was not made");
      session = checkpoint->second;
    } else if (call == "keep") {
      kept_[StrCat(run, " ", to)] = session;
    } else if (call == "lost" || call == "end") {
      report_.lost += call == "lost" && run == "tested";
      sessions_.erase(key);
      return;
    } else if (call != "create" && call != "begin" && call != "watch") {
      return Fault(where_, StrCat("its call is '", call, "'"));
    }
    CheckCounts(line, session);
  }

  // Applied exactly once: after each call every layer has seen what its answered calls say.
  void CheckCounts(const Json& line, SessionHistory& session) {
    if (!line.contains("counts")) return;
    for (const auto& [text, count] : line.at("counts").items()) {
      const int64_t expected = session[static_cast<int32_t>(std::stol(text))].count;
      if (count.get<int64_t>() == expected) continue;
      Fault(where_,
            StrCat("layer ", text, " has seen ", count.get<int64_t>(), " tokens, its answered calls ", expected));
    }
  }

  HistoryReport report_;
  std::string where_;
  std::map<std::string, SessionHistory> sessions_, checkpoints_, kept_;
  std::map<std::string, std::string> truth_;  // outputs by call and state
  std::vector<Output> tested_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HistoryWriter>> HistoryWriter::Create(const std::string& path) {
  std::unique_ptr<HistoryWriter> writer(new HistoryWriter(path));
  absl::MutexLock lock(&writer->mu_);
  if (writer->file_) return writer;
  return absl::NotFoundError(AbslView(StrCat("cannot write '", path, "'")));
}

void HistoryWriter::Add(const HistoryLine& line) {
  Json json = {{"run", line.run}, {"session", line.session}, {"call", line.call}};
  if (!line.form.empty()) json["form"] = line.form;
  if (!line.first.empty()) json["first"] = line.first;
  if (line.layer >= 0) {
    json["layer"] = line.layer;
    json["tokens"] = line.tokens;
    json["inputs"] = line.inputs;
  }
  if (!line.parents.empty()) json["parents"] = line.parents;
  if (line.call == "accept") json["path"] = line.path;
  if (!line.output.empty()) json["output"] = line.output;
  if (!line.to.empty()) json["to"] = line.to;
  for (const auto& [layer, count] : line.counts) json["counts"][std::to_string(layer)] = count;
  absl::MutexLock lock(&mu_);
  file_ << json.dump() << "\n" << std::flush;
}

HistoryReport CheckHistory(const std::vector<std::string>& paths) {
  Checker checker;
  for (const std::string& path : paths) checker.Read(path);
  return checker.Finish();
}

}  // namespace gdn
