// ExportState and ImportState from the client's side.
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/hash.h"
#include "client/cpp/client.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/test/mock_stream.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/mock_stub.h"
#include "tests/support/assert_ok.h"

namespace gdn::state_transfer_test {
namespace {

using ::testing::_;
using ::testing::DoAll;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::NiceMock;
using ::testing::Pair;
using ::testing::Return;
using ::testing::SetArgPointee;

using ExportReader = NiceMock<grpc::testing::MockClientReader<v1::ExportStateResponse>>;

class StateTransfer : public ::testing::Test {
 protected:
  StateTransfer() {
    auto stub = std::make_unique<NiceMock<v1::MockGdnServiceStub>>();
    stub_ = stub.get();
    client_ = std::make_unique<Client>(std::move(stub));
  }

  // A reader that gives `pieces` and ends with `status`. The client owns it once it is asked for.
  void ExpectExport(const std::vector<v1::ExportStateResponse>& pieces, const grpc::Status& status = grpc::Status::OK) {
    auto* const reader = new ExportReader;
    EXPECT_CALL(*stub_, ExportStateRaw(_, _)).WillOnce(Return(reader));
    auto& reads = EXPECT_CALL(*reader, Read(_));
    reads.Times(::testing::AtMost(static_cast<int>(pieces.size()) + 1));
    for (const auto& piece : pieces) reads.WillOnce(DoAll(SetArgPointee<0>(piece), Return(true)));
    reads.WillRepeatedly(Return(false));
    EXPECT_CALL(*reader, Finish()).WillOnce(Return(status));
  }

  NiceMock<v1::MockGdnServiceStub>* stub_;  // owned by client_
  std::unique_ptr<Client> client_;
};

v1::ExportStateResponse Piece(const std::string& data, int64_t offset, int64_t total_bytes) {
  v1::ExportStateResponse piece;
  piece.set_data(data);
  piece.set_offset(offset);
  piece.set_total_bytes(total_bytes);
  piece.set_checksum(Hash64(data));
  return piece;
}

std::string Bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  return bytes;
}

TEST_F(StateTransfer, ExportsAWholeFile) {
  ExpectExport({Piece("abc", 0, 8), Piece("", 3, 8), Piece("defgh", 3, 8)});
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, client_->ExportState(v1::ExportStateRequest()));
  EXPECT_EQ(file, "abcdefgh");
}

TEST_F(StateTransfer, RefusesAnExportWithAHoleOneThatIsCutAndOneOfAnotherSizeThanAnnounced) {
  const std::pair<std::vector<v1::ExportStateResponse>, std::string> cases[] = {
      {{Piece("abc", 0, 8), Piece("gh", 6, 8)}, "begins at byte 6, expected 3"},
      {{Piece("abc", 0, 8)}, "3 of 8 bytes"},
      {{}, "no piece"},
      {{Piece("abc", 0, 2)}, "more bytes"},
      {{Piece("abc", 0, 8), Piece("def", 3, 6)}, "from 8 to 6"}};
  for (const auto& [pieces, message] : cases) {
    ExpectExport(pieces);
    const absl::Status status = client_->ExportState(v1::ExportStateRequest()).status();
    ExpectError(status, absl::StatusCode::kDataLoss, reason::kInvalidStateFile, message);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST_F(StateTransfer, GivesNoDamagedPieceToTheSink) {
  v1::ExportStateResponse damaged = Piece("defgh", 3, 8);
  damaged.mutable_data()->at(2) ^= 1;
  ExpectExport({Piece("abc", 0, 8), damaged});
  std::string seen;
  const absl::Status status = client_->ExportState(v1::ExportStateRequest(), [&seen](std::string_view piece) {
    seen += piece;
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checksum of the 5 bytes from byte 3"));
  EXPECT_EQ(seen, "abc");
}

TEST_F(StateTransfer, ReportsTheServersErrorOverAShortExport) {
  ExpectExport({Piece("abc", 0, 8)}, grpc::Status(grpc::StatusCode::ABORTED, "busy"));
  EXPECT_EQ(client_->ExportState(v1::ExportStateRequest()).status().code(), absl::StatusCode::kAborted);
}

TEST_F(StateTransfer, EndsAnExportWhoseSinkFails) {
  ExpectExport({Piece("abc", 0, 8), Piece("defgh", 3, 8)}, grpc::Status::CANCELLED);
  int calls = 0;
  const absl::Status status = client_->ExportState(v1::ExportStateRequest(), [&calls](std::string_view) {
    ++calls;
    return absl::ResourceExhaustedError("disk full");
  });
  EXPECT_EQ(status, absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(calls, 1);
}

TEST_F(StateTransfer, TellsOfTheProgressOfAnExport) {
  ExpectExport({Piece("abc", 0, 8), Piece("defgh", 3, 8)});
  std::vector<std::pair<int64_t, int64_t>> steps;
  CallOptions call;
  call.progress = [&steps](int64_t done, int64_t total) { steps.emplace_back(done, total); };
  ASSERT_TRUE(client_->ExportState(v1::ExportStateRequest(), call).ok());
  EXPECT_THAT(steps, ElementsAre(Pair(3, 8), Pair(8, 8)));
}

// Keeps what it is sent, and answers after `answer_after` messages or the last.
class ImportService final : public v1::GdnService::Service {
 public:
  grpc::Status ImportState(grpc::ServerContext* context, grpc::ServerReader<v1::ImportStateRequest>* reader,
                           v1::ImportStateResponse* response) override {
    absl::MutexLock lock(&mu_);
    v1::ImportStateRequest request;
    while (static_cast<int>(sent_.size()) < answer_after && reader->Read(&request)) sent_.push_back(request);
    cancelled_ = context->IsCancelled();
    response->mutable_session()->set_name("sessions/new");
    over_ = true;
    return answer;
  }

  // Once it has answered.
  std::vector<v1::ImportStateRequest> sent() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&over_));
    return sent_;
  }
  bool cancelled() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&over_));
    return cancelled_;
  }

  int answer_after = std::numeric_limits<int>::max();
  grpc::Status answer;

 private:
  absl::Mutex mu_;
  std::vector<v1::ImportStateRequest> sent_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

class StateImport : public ::testing::Test {
 protected:
  StateImport() {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<Client>(server_->InProcessChannel({}));
  }

  ImportService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(StateImport, SendsTheTargetFirstAndThenTheFileInPieces) {
  const std::string file = Bytes(2 * kImportChunkBytes + 17);
  v1::ImportStateRequest::Target target;
  target.set_session_id("new");
  std::vector<std::pair<int64_t, int64_t>> steps;
  CallOptions call;
  call.progress = [&steps](int64_t done, int64_t total) { steps.emplace_back(done, total); };
  GDN_ASSERT_OK_AND_ASSIGN(const auto session, client_->ImportState(target, file, call));
  EXPECT_EQ(session.name(), "sessions/new");
  const std::vector<v1::ImportStateRequest> sent = service_.sent();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent[0].target().session_id(), "new");
  EXPECT_EQ(sent[0].target().total_bytes(), static_cast<int64_t>(file.size()));
  EXPECT_FALSE(sent[0].has_checksum());
  std::string joined;
  for (size_t i = 1; i < sent.size(); ++i) {
    ASSERT_TRUE(sent[i].has_data());
    EXPECT_LE(sent[i].data().size(), kImportChunkBytes);
    EXPECT_TRUE(sent[i].has_checksum());
    EXPECT_EQ(sent[i].checksum(), Hash64(sent[i].data()));
    joined += sent[i].data();
  }
  EXPECT_TRUE(joined == file);
  const auto size = static_cast<int64_t>(file.size());
  const auto chunk = static_cast<int64_t>(kImportChunkBytes);
  EXPECT_THAT(steps, ElementsAre(Pair(chunk, size), Pair(2 * chunk, size), Pair(size, size)));
}

TEST_F(StateImport, IsCancelledWhereItsSourceFails) {
  int calls = 0;
  const auto source = [&calls](size_t bytes) -> absl::StatusOr<std::string_view> {
    if (++calls == 2) return absl::DataLossError("the disk is broken");
    return std::string_view("abc").substr(0, bytes);
  };
  EXPECT_EQ(client_->ImportState(v1::ImportStateRequest::Target(), source).status(),
            absl::DataLossError("the disk is broken"));
  EXPECT_TRUE(service_.cancelled()) << "the server must not take what it has for the whole file";
}

TEST_F(StateImport, ReportsWhyItWasCutOff) {
  service_.answer_after = 1;
  service_.answer = grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "taken");
  const absl::Status status =
      client_->ImportState(v1::ImportStateRequest::Target(), std::string(4 * kImportChunkBytes, 'x')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(StateImport, FailsWhereNoServerIs) {
  const auto nowhere = Client::Connect("unix:/nonexistent/socket");
  const absl::Status status = nowhere->ImportState(v1::ImportStateRequest::Target(), std::string(64, 'x')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(StateTransfer, ImportNeedsAChannel) {
  EXPECT_EQ(client_->ImportState(v1::ImportStateRequest::Target(), "x").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace gdn::state_transfer_test
