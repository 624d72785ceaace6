// Fixtures of released versions (README.md beside this file), and comparisons of what a server of this build makes of
// them.
//
// Thread safety: for one thread. Ownership: plain values; a Caller borrows its server.
//
//   for (const std::string& version : FixtureVersions()) {
//     const nlohmann::json manifest = JsonOf(FixturePath(version, "manifest.json"));
//     ExpectSession(caller, manifest["state_files"][0]["session"], {.numerics_id = manifest["numerics_id"]});
//   }
#pragma once

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "tests/integration/support/service_helpers.h"

namespace gdn {

// The folders' names, ascending: "v0.1.0". The test fails if there are none.
std::vector<std::string> FixtureVersions();
// Returns the backends that the tests compute with, by the names of MakeBackend: the CPU, and if the build has it, a
// backend that always has another numerics_id than the fixtures.
std::vector<std::string> FixtureBackends();
// Returns a version in the form that names of tests may have: "v0_1_0".
std::string TestNameOf(const std::string& version);

std::string FixturePath(const std::string& version, const std::string& file);
nlohmann::json JsonOf(const std::string& path);
std::string FromBase64(const std::string& text);

// Makes an empty message of this build, by its full name; nullptr, and a failed test, if there is none.
std::unique_ptr<google::protobuf::Message> NewMessage(const std::string& type);

// Sends a request's bytes as they are, and returns the reply's. Repeats the call for up to ten seconds while it is
// refused because stores or the server's lease are not there yet, or the session is on its way.
Outcome<std::string> CallWithBytes(const Caller& caller, const std::string& method, const std::string& request);

// The numerics_id that computed a fixture's outputs, and the largest relative error of outputs of another numerics_id.
struct FixtureNumerics {
  std::string numerics_id;
  double tolerance = kSplitTolerance;
};

// Checks that the session has the recorded epoch, counts and checkpoints, and answers the recorded steps: with the same
// bits if the server's numerics_id is the recorded one, else within the tolerance. A session that is "gone" must be
// unknown.
void ExpectSession(const Caller& caller, const nlohmann::json& session, const FixtureNumerics& numerics);

}  // namespace gdn
