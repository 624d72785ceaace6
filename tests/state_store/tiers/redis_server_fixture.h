// A real redis-server for a test, on a socket and with data in a temporary folder; it can be killed and started again.
//
// Thread safety: Kill from any thread, the rest from one, with which the server ends. Ownership: the server ends and
// the folder goes with the object.
//
//   if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
//   RedisServer server({.append_only = true});
//   server.Start();
//   server.Kill();   // SIGKILL
//   server.Start();  // with what it had
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "tests/support/temp_folder.h"

namespace gdn {

struct RedisServerOptions {
  bool append_only = false;                 // what it acknowledged is there after Kill and Start; else it starts empty
  bool tcp = false;                         // a free port of the loopback address instead of a socket
  int sentinel_of = 0;                      // a Sentinel that watches the master on this port; implies tcp
  std::vector<std::string> arguments = {};  // further ones
};

class RedisServer {
 public:
  static bool Installed();

  explicit RedisServer(RedisServerOptions options = {});
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  // Returns once it answers; ends the program where it does not within a minute.
  void Start();
  // The process stands still, and goes on: to others as if its machine were cut off.
  void Stop();
  void Continue();
  // Ends the process at once. The process is collected by the next Start, or by the destructor.
  void Kill();

  // Copies its data files to a new folder, for a server with `append_only` that nobody writes to meanwhile.
  void CopyDataTo(const std::string& folder) const;
  // Kills it, and starts it with the data files of such a copy.
  void RestartWith(const std::string& folder);

  std::string endpoint() const;
  int port() const { return port_; }  // with `tcp`
  // What Sentinels call the master.
  static constexpr const char* kMasterName = "gdn-test";
  // Sends one command and returns its reply as text: strings and errors as they are, numbers in decimal, arrays line by
  // line, "(nil)".
  std::string Command(const std::vector<std::string>& arguments) const { return CommandAs("", arguments); }
  // With a password.
  std::string CommandAs(const std::string& password, const std::vector<std::string>& arguments) const;

 private:
  std::vector<std::string> ServerArguments() const;
  std::vector<std::string> SentinelArguments() const;
  void Launch(std::vector<std::string> arguments);

  const RedisServerOptions options_;
  const TempFolder folder_;
  const int port_;
  std::optional<ChildProcess> process_;
};

}  // namespace gdn
