// A real redis-server for a test, on a socket, with data in a temporary folder. It can be killed and started again.
//
// Thread safety: Kill is safe from any thread; all else must be called on one thread, and the server ends when that
// thread ends. Ownership: the destructor ends the server and removes the folder.
//
//   if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
//   RedisServer server({.append_only = true});
//   server.Start();
//   server.Kill();   // SIGKILL
//   server.Start();  // with its data
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/temp_folder.h"
#include "tools/common/child_process.h"

namespace gdn {

struct RedisServerOptions {
  bool append_only = false;                 // acknowledged writes survive Kill and Start; else it starts empty
  bool tcp = false;                         // a free port of the loopback address instead of a socket
  int sentinel_of = 0;                      // a Sentinel that watches the master on this port; implies tcp
  std::vector<std::string> arguments = {};  // further command line arguments
};

class RedisServer {
 public:
  static bool Installed();

  explicit RedisServer(RedisServerOptions options = {});
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  // Starts the server and waits until it answers. Ends the program if it does not within a minute.
  void Start();
  // Stop and Continue the process; to its clients it looks as if its machine were cut off.
  void Stop();
  void Continue();
  // Kills the process. The next Start, or the destructor, waits for its end.
  void Kill();

  // Copies the data files to a new folder. The server must have `append_only`, and nobody may write to it meanwhile.
  void CopyDataTo(const std::string& folder) const;
  // Kills the server, and starts it with the data files of such a copy.
  void RestartWith(const std::string& folder);

  std::string endpoint() const;
  int port() const { return port_; }  // with `tcp`
  // The name of the master at Sentinels.
  static constexpr const char* kMasterName = "gdn-test";
  // Sends one command and returns its reply as text: strings and errors unchanged, numbers in decimal, arrays with one
  // element on each line, nil as "(nil)".
  std::string Command(const std::vector<std::string>& arguments) const { return CommandAs("", arguments); }
  // Does the same with a password.
  std::string CommandAs(const std::string& password, const std::vector<std::string>& arguments) const;

 private:
  std::vector<std::string> ServerArguments() const;
  std::vector<std::string> SentinelArguments() const;
  absl::Status Launch(std::vector<std::string> arguments);

  const RedisServerOptions options_;
  const TempFolder folder_;
  int port_;
  bool has_run_ = false;  // another program may take a free port before the first start
  std::optional<ChildProcess> process_;
};

}  // namespace gdn
