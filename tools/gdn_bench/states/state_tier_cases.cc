// Moves of a session between the device and the tiers below, and forks, in this process: the server's own code without
// gRPC around it.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "kernels/cpu/cpu_backend.h"
#include "server/session/state_service.h"
#include "state_store/host_block_pool.h"
#include "tools/common/child_process.h"
#include "tools/gdn_bench/kernels/kernel_case.h"
#include "tools/gdn_bench/states/state_bench.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

constexpr int32_t kMaxDraft = 8;
constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kKeepBytes = int64_t{1} << 30;

// A state service of a CPU backend with a session's states to make sessions of.
struct Bed {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<HostBlockPool> memory;
  SessionSpec spec;
  SessionImagePtr image;
  DeviceHealth health;
  ByteLedger ledger{{}};
  ThreadExecutor flows{{.name = "gdn-flows", .threads = 1}};
  std::unique_ptr<StateService> states;  // last: uses the above

  int32_t layers() const { return static_cast<int32_t>(spec.layers.size()); }

  static absl::StatusOr<std::unique_ptr<Bed>> Make(int layers, int sessions, int64_t host_bytes,
                                                   const std::string& disk_dir) {
    auto bed = std::make_unique<Bed>();
    GDN_ASSIGN_OR_RETURN(bed->backend, MakeCpuBackend({}));
    bed->memory = std::make_unique<HostBlockPool>(*bed->backend, kKeepBytes);
    bed->spec.dims = BenchOperatorDims();
    bed->spec.layers.resize(static_cast<size_t>(layers));
    std::iota(bed->spec.layers.begin(), bed->spec.layers.end(), 0);
    GDN_RETURN_IF_ERROR(bed->MakeImage());
    StateServiceOptions options;
    options.device_bytes = bed->image->layout.slot_bytes() * layers * sessions;
    options.max_draft = kMaxDraft;
    options.host_bytes = host_bytes;
    options.disk.directory = disk_dir;
    GDN_ASSIGN_OR_RETURN(bed->states,
                         StateService::Make({{*bed->backend, bed->health}}, bed->ledger, bed->flows, options));
    return bed;
  }

  absl::Status MakeImage() {
    auto made = std::make_shared<SessionImage>();
    made->header.dims = spec.dims;
    made->header.layers = spec.layers;
    made->numerics_id = backend->info().numerics_id;
    made->transposed_base = backend->info().transposed_base;
    GDN_ASSIGN_OR_RETURN(made->layout, StateLayout::Make(spec.dims, kMaxDraft));
    const auto bytes = static_cast<size_t>(made->layout.slot_bytes());
    // None is above 0: some are log decays.
    GDN_ASSIGN_OR_RETURN(const auto numbers, RandomBuffer(*backend, made->layout.slot_floats(), -1, 0));
    for (const int32_t layer : spec.layers) {
      LayerImage& out = made->layers.emplace_back();
      out.layer = layer;
      out.extent = {.token_count = 8, .log_length = 4};
      out.kind = InputKind::kDeltaRule;
      GDN_ASSIGN_OR_RETURN(out.slot, memory->Take(bytes));
      std::memcpy(out.slot.floats(), numbers->data(), bytes);
    }
    image = std::move(made);
    return absl::OkStatus();
  }

  // A session on the device with the image's states.
  absl::StatusOr<std::shared_ptr<Session>> MakeSession(const std::string& id) {
    GDN_ASSIGN_OR_RETURN(SessionCreation creation,
                         states->sessions().Begin({.id = id, .spec = spec, .affinity = {}, .request = {}}));
    auto lease = BlockOn(flows, states->residency().Place(std::move(creation.lease()), image, {}));
    GDN_RETURN_IF_ERROR(lease.status());
    creation.Publish();
    return lease->session();
  }
  absl::Status Delete(const std::string& id) { return BlockOn(flows, states->sessions().Delete(/*principal=*/"", id)); }
  // Takes the room of a whole session, so that the one that is there goes.
  absl::StatusOr<double> Spill() {
    const double start = NowSeconds();
    const auto claims = BlockOn(
        flows, states->residency().Reserve({.dims = spec.dims, .count = layers()}, ledger.AccountOf("", ""), {}));
    const double seconds = NowSeconds() - start;
    GDN_RETURN_IF_ERROR(claims.status());
    return seconds;
  }
  absl::StatusOr<double> Return(const std::shared_ptr<Session>& session) {
    const double start = NowSeconds();
    const auto pins = BlockOn(flows, states->residency().Pin({session}, {}));
    const double seconds = NowSeconds() - start;
    GDN_RETURN_IF_ERROR(pins.front().status());
    return seconds;
  }
};

// The seconds that dd takes.
absl::StatusOr<double> RunDd(const std::string& from, const std::string& to, int64_t mebibytes, bool sync) {
  std::vector<std::string> argv = {"dd",    absl::StrCat("if=", from),         absl::StrCat("of=", to),
                                   "bs=1M", absl::StrCat("count=", mebibytes), "status=none"};
  if (sync) argv.push_back("conv=fsync");
  const double start = NowSeconds();
  GDN_ASSIGN_OR_RETURN(ChildProcess dd, ChildProcess::Start(std::move(argv), /*log_file=*/""));
  const int exit_code = dd.Wait();
  const double seconds = NowSeconds() - start;
  if (exit_code == 0) return seconds;
  return absl::UnavailableError(absl::StrCat("dd from ", from, " to ", to, " failed"));
}

absl::Status MeasureHostTier(StateReport& report) {
  const int layers = report.options.layers;
  GDN_ASSIGN_OR_RETURN(const auto bed, Bed::Make(layers, 1, kKeepBytes, /*disk_dir=*/""));
  const int64_t bytes = bed->image->bytes();
  report.state_bytes = bytes;
  GDN_ASSIGN_OR_RETURN(std::shared_ptr<Session> session, bed->MakeSession("a"));

  // The same bytes, in the same portions, between memory that has been written before.
  const StateLayout& layout = bed->image->layout;
  GDN_ASSIGN_OR_RETURN(const auto from, RandomBuffer(*bed->backend, layout.slot_floats() * layers, -1, 1));
  GDN_ASSIGN_OR_RETURN(const auto to, RandomBuffer(*bed->backend, layout.slot_floats() * layers, -1, 1));
  const auto copy = [&]() -> absl::StatusOr<double> {
    const double start = NowSeconds();
    for (int layer = 0; layer < layers; ++layer) {
      std::memcpy(to->floats() + layer * layout.slot_floats(), from->floats() + layer * layout.slot_floats(),
                  static_cast<size_t>(layout.slot_bytes()));
    }
    return NowSeconds() - start;
  };
  const auto spill = [&]() -> absl::StatusOr<double> {
    GDN_RETURN_IF_ERROR(bed->Return(session).status());
    return bed->Spill();
  };
  const auto back = [&]() -> absl::StatusOr<double> {
    GDN_RETURN_IF_ERROR(bed->Spill().status());
    return bed->Return(session);
  };
  GDN_RETURN_IF_ERROR(MeasureRate("spill_host", "memcpy", bytes, spill, copy, report));
  return MeasureRate("return_host", "memcpy", bytes, back, copy, report);
}

absl::Status MeasureDiskTier(const std::string& folder, StateReport& report) {
  GDN_ASSIGN_OR_RETURN(const auto bed, Bed::Make(report.options.layers, 1, /*host_bytes=*/0, folder + "/tier"));
  const int64_t mebibytes = bed->image->bytes() / kMebibyte;
  const std::string plain = folder + "/plain";
  const auto remove_plain = absl::MakeCleanup([&plain] {
    std::error_code ignored;
    std::filesystem::remove(plain, ignored);
  });
  // A new session each time: one that has not moved since it was last stored is not written again.
  int64_t made = 0;
  std::string id;
  std::shared_ptr<Session> session;
  const auto renew = [&]() -> absl::Status {
    if (!id.empty()) GDN_RETURN_IF_ERROR(bed->Delete(id));
    id = absl::StrCat("s", made++);
    GDN_ASSIGN_OR_RETURN(session, bed->MakeSession(id));
    return absl::OkStatus();
  };
  const auto spill = [&]() -> absl::StatusOr<double> {
    GDN_RETURN_IF_ERROR(renew());
    return bed->Spill();
  };
  const auto back = [&]() -> absl::StatusOr<double> {
    GDN_RETURN_IF_ERROR(renew());
    GDN_RETURN_IF_ERROR(bed->Spill().status());
    return bed->Return(session);
  };
  const auto write = [&]() -> absl::StatusOr<double> {
    std::error_code ignored;
    std::filesystem::remove(plain, ignored);
    return RunDd("/dev/zero", plain, mebibytes, /*sync=*/true);
  };
  const auto read = [&] { return RunDd(plain, "/dev/null", mebibytes, /*sync=*/false); };
  const int64_t bytes = mebibytes * kMebibyte;  // of both, but for a last part of a mebibyte
  GDN_RETURN_IF_ERROR(MeasureRate("spill_disk", "dd_fsync", bytes, spill, write, report));
  return MeasureRate("return_disk", "dd_read", bytes, back, read, report);
}

// As ForkSession does it.
absl::StatusOr<double> TimeFork(Bed& bed, const std::shared_ptr<Session>& parent) {
  Residency& residency = bed.states->residency();
  const double start = NowSeconds();
  SessionInit init{.id = "fork", .spec = parent->spec(), .affinity = {}, .request = {}};
  GDN_ASSIGN_OR_RETURN(SessionCreation creation, bed.states->sessions().Begin(init));
  auto lease = BlockOn(bed.flows, residency.LockResident(parent, {}));
  GDN_RETURN_IF_ERROR(lease.status());
  const int32_t own = lease->claims_to_share();
  auto claims = BlockOn(
      bed.flows, residency.Reserve({.dims = parent->spec().dims, .pool = lease->pool(), .count = bed.layers() + own},
                                   parent->account(), {}));
  GDN_RETURN_IF_ERROR(claims.status());
  std::vector<SlotClaim>& slots = claims->slots;
  std::vector<SlotClaim> of_child(std::make_move_iterator(slots.begin() + own), std::make_move_iterator(slots.end()));
  slots.resize(static_cast<size_t>(own));
  std::shared_ptr<Session> child = lease->Fork(std::move(init), std::move(of_child), std::move(slots));
  bed.states->room().Track(child, /*device=*/0, std::move(claims->charge));
  creation.Replace(std::move(child));
  creation.Publish();
  lease->Release();
  const double seconds = NowSeconds() - start;
  GDN_RETURN_IF_ERROR(bed.Delete("fork"));
  return seconds;
}

absl::Status MeasureSessionForks(StateReport& report) {
  GDN_ASSIGN_OR_RETURN(const auto many_bed, Bed::Make(report.options.layers, 3, 0, ""));
  GDN_ASSIGN_OR_RETURN(const auto one_bed, Bed::Make(1, 3, 0, ""));
  GDN_ASSIGN_OR_RETURN(const auto many, many_bed->MakeSession("a"));
  GDN_ASSIGN_OR_RETURN(const auto one, one_bed->MakeSession("a"));
  return MeasureFork(
      "fork_session", [&] { return TimeFork(*many_bed, many); }, [&] { return TimeFork(*one_bed, one); }, report);
}

}  // namespace

absl::Status MeasureTiers(const std::string& folder, StateReport& report) {
  GDN_RETURN_IF_ERROR(MeasureHostTier(report));
  GDN_RETURN_IF_ERROR(MeasureDiskTier(folder, report));
  return MeasureSessionForks(report);
}

}  // namespace gdn::bench
