// Closed-loop load on one server: workers that each send the next Decode when the last has been answered.
//
// Thread safety: one thread drives it. Ownership: owns its clients; the server must outlive it.
//
//   GDN_ASSIGN_OR_RETURN(auto load, RpcLoad::Make("127.0.0.1:5001", requests));
//   GDN_ASSIGN_OR_RETURN(LoadBlock block, load->RunBlock(/*calls_per_worker=*/20));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace gdn::bench {

struct LoadBlock {
  std::vector<double> latencies_s;  // of every call
  double seconds = 0;               // from the first call's start to the last one's end
};

// A client with a connection shared with no other, so that workers do not queue behind each other's messages.
std::unique_ptr<Client> ConnectAlone(const std::string& target);

class RpcLoad {
 public:
  // One worker a request. With `request_ids`, each call carries a new one.
  RpcLoad(const std::string& target, std::vector<v1::DecodeRequest> requests, bool request_ids);

  // The first error of any call, or INTERNAL where an output has other bytes than the input.
  absl::StatusOr<LoadBlock> RunBlock(int calls_per_worker);

  int64_t response_bytes() const { return workers_[0].response_bytes; }

 private:
  struct Worker {
    std::unique_ptr<Client> client;
    v1::DecodeRequest request;
    int64_t calls = 0;
    int64_t response_bytes = 0;
    std::vector<double> latencies_s;
    double start_s = 0;
    double end_s = 0;
    absl::Status status;
  };
  absl::Status RunCalls(Worker& worker, int calls) const;

  std::vector<Worker> workers_;
  const bool request_ids_;
};

}  // namespace gdn::bench
