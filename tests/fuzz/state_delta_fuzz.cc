// A full file of a state, and a delta to it: completed as a tier that loads does, and merged into one file. The input
// is the full file as a field (fuzz_target.h), and the delta.
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  fuzz::Input input(data, size);
  const std::string_view full_bytes = input.Field();
  const std::string_view delta_bytes = input.Rest();
  const auto merged = MergeDelta(full_bytes, delta_bytes);
  fuzz::CheckRefusal(merged.status());
  if (merged.ok()) {
    const auto parsed = ParseStateFile(*merged);
    GDN_FUZZ_CHECK(parsed.ok(), parsed.status().ToString());
    GDN_FUZZ_CHECK(parsed->base_snapshot_id.empty(), "a merged file is a delta");
  }
  const auto full = ParseStateFile(full_bytes);
  auto delta = ParseStateFile(delta_bytes);
  if (!full.ok() || !delta.ok()) {
    GDN_FUZZ_CHECK(!merged.ok(), "what cannot be read was merged");
    return 0;
  }
  const absl::Status completed = CompleteDelta(*full, *delta);
  fuzz::CheckRefusal(completed);
  if (!completed.ok()) return 0;
  const auto layout = StateLayout::Make(delta->header.dims, /*max_draft=*/8, delta->base_dtype);
  if (layout.ok()) fuzz::CheckRefusal(ReadImage(*delta, *layout, nullptr).status());
  return 0;
}
