// The tensors of one step that are in shared memory. Inputs are copied out of it once; the output is copied into it.
//
// Thread safety: for one thread at a time. Ownership: owns the copies, which the input's views then point to, and keeps
// the output's region; the request and the HostBlockPool must outlive it.
//
//   GDN_RETURN_IF_ERROR(tensors.Load(regions, principal, message_bytes, limits, memory, input));
//   ... CheckRowValues(input, row), and the step itself ...
//   tensors.PutOutput(data, *response->mutable_output());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "gdn/v1/tensor.pb.h"
#include "server/admission/byte_ledger.h"
#include "server/shared_memory/shared_regions.h"
#include "server/validation/step_input.h"
#include "state_store/host_block_pool.h"

namespace gdn {

class SharedTensors {
 public:
  // True if an input or the output is in shared memory.
  static bool UsedBy(const CheckedInput& input);

  // Finds the regions, checks all ranges, copies the inputs, and lets the views in `input` point to the copies.
  // `message_bytes`: size of the request itself; the inputs count towards StepLimits::max_message_bytes too. `charge`
  // grows by the size of the copies. Errors of SharedRegions::Find and SharedRegion, with `field`, of CheckMessageSize,
  // ByteCharge::TryGrow, and HostBlockPool::TakeForCall.
  absl::Status Load(const SharedRegions& regions, const std::string& principal, int64_t message_bytes,
                    const StepLimits& limits, HostBlockPool& memory, ByteCharge& charge, CheckedInput& input);
  bool takes_output() const { return output_region_ != nullptr; }
  // Copies the output's data to the region that the request names, and records that in `output`. Call only if
  // takes_output(). Returns false if writing to the region fails (for example, the file system is full); the reply must
  // then carry the data.
  bool PutOutput(std::string_view data, v1::Tensor& output) const;
  // Frees the copies, which the views in `input` must not use any more, and releases the output's region.
  void Clear();

 private:
  HostBlock copies_;
  SharedRegionPtr output_region_;
  const v1::SharedRange* output_range_ = nullptr;
};

}  // namespace gdn
