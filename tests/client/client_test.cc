#include "client/cpp/client.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "gdn/v1/service_mock.grpc.pb.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "grpcpp/test/mock_stream.h"
#include "gtest/gtest.h"

namespace gdn {
namespace {

using ::testing::_;
using ::testing::DoAll;
using ::testing::HasSubstr;
using ::testing::InSequence;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::SetArgPointee;

using ExportReader = NiceMock<grpc::testing::MockClientReader<v1::ExportStateResponse>>;
using ImportWriter = NiceMock<grpc::testing::MockClientWriter<v1::ImportStateRequest>>;

grpc::Status ServerError(grpc::StatusCode code, const std::string& reason) {
  google::rpc::Status details;
  details.set_code(code);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("gdn.v1");
  (*info.mutable_metadata())["session"] = "sessions/a";
  details.add_details()->PackFrom(info);
  return grpc::Status(code, "said the server", details.SerializeAsString());
}

class ClientTest : public ::testing::Test {
 protected:
  explicit ClientTest(ClientOptions options = {}) {
    auto stub = std::make_unique<NiceMock<v1::MockGdnServiceStub>>();
    stub_ = stub.get();
    client_ = std::make_unique<Client>(std::move(stub), std::move(options));
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
  return piece;
}

TEST_F(ClientTest, GivesTheServersReply) {
  v1::PrefillResponse response;
  response.set_token_count(12);
  EXPECT_CALL(*stub_, Prefill(_, _, _)).WillOnce([&](auto*, const v1::PrefillRequest& request, auto* out) {
    EXPECT_EQ(request.session(), "sessions/a");
    *out = response;
    return grpc::Status::OK;
  });
  v1::PrefillRequest request;
  request.set_session("sessions/a");
  const auto reply = client_->Prefill(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->token_count(), 12);
}

TEST_F(ClientTest, GivesTheServersReasonAndMetadata) {
  EXPECT_CALL(*stub_, Decode(_, _, _)).WillOnce(Return(ServerError(grpc::StatusCode::ABORTED, "SESSION_BUSY")));
  const absl::Status status = client_->Decode(v1::DecodeRequest()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(status), reason::kSessionBusy);
  EXPECT_EQ(ErrorMetadata(status)["session"], "sessions/a");
  EXPECT_EQ(status.message(), "said the server");
}

TEST_F(ClientTest, NamesTheResourceItAsksFor) {
  EXPECT_CALL(*stub_, GetSession(_, _, _)).WillOnce([](auto*, const v1::GetSessionRequest& request, auto* out) {
    out->mutable_session()->set_name(request.name());
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, GetModel(_, _, _)).WillOnce([](auto*, const v1::GetModelRequest& request, auto* out) {
    out->mutable_model()->set_name(request.name());
    return grpc::Status::OK;
  });
  EXPECT_CALL(*stub_, DeleteSession(_, _, _)).WillOnce([](auto*, const v1::DeleteSessionRequest& request, auto*) {
    EXPECT_EQ(request.name(), "sessions/a");
    return grpc::Status::OK;
  });
  EXPECT_EQ(client_->GetSession("sessions/a")->name(), "sessions/a");
  EXPECT_EQ(client_->GetModel("models/m")->name(), "models/m");
  EXPECT_TRUE(client_->DeleteSession("sessions/a").ok());
}

TEST_F(ClientTest, SetsTheDefaultDeadlineOrTheCallsOwn) {
  std::vector<double> seconds;
  EXPECT_CALL(*stub_, GetServerInfo(_, _, _)).Times(3).WillRepeatedly([&](grpc::ClientContext* context, auto&, auto*) {
    const auto left = context->deadline() - std::chrono::system_clock::now();
    seconds.push_back(std::chrono::duration<double>(left).count());
    return grpc::Status::OK;
  });
  ASSERT_TRUE(client_->GetServerInfo().ok());
  ASSERT_TRUE(client_->GetServerInfo({.timeout = absl::Seconds(5), .affinity = ""}).ok());
  ASSERT_TRUE(client_->GetServerInfo({.timeout = absl::InfiniteDuration(), .affinity = ""}).ok());
  EXPECT_NEAR(seconds[0], 60, 3);
  EXPECT_NEAR(seconds[1], 5, 3);
  EXPECT_GT(seconds[2], 1e6);
}

TEST_F(ClientTest, GivesStreamsNoDeadlineUnlessAsked) {
  EXPECT_CALL(*stub_, StreamDecodeRaw(_)).WillOnce([](grpc::ClientContext* context) {
    EXPECT_GT(context->deadline(), std::chrono::system_clock::now() + std::chrono::hours(24));
    return new NiceMock<grpc::testing::MockClientReaderWriter<v1::StreamDecodeRequest, v1::StreamDecodeResponse>>;
  });
  EXPECT_TRUE(client_->StreamDecode().ok());
}

TEST_F(ClientTest, RefusesMetadataThatCannotBeSent) {
  EXPECT_CALL(*stub_, GetServerInfo(_, _, _)).Times(0);
  const absl::Status status = client_->GetServerInfo({.timeout = {}, .affinity = "a\nb"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("x-gdn-affinity"));
}

TEST_F(ClientTest, ListsAllPages) {
  InSequence in_order;
  for (int page = 0; page < 3; ++page) {
    EXPECT_CALL(*stub_, ListSessions(_, _, _))
        .WillOnce([page](auto*, const v1::ListSessionsRequest& request, auto* out) {
          EXPECT_EQ(request.page_token(), page == 0 ? "" : "after-" + std::to_string(page - 1));
          out->add_sessions()->set_name("sessions/" + std::to_string(page));
          if (page < 2) out->set_next_page_token("after-" + std::to_string(page));
          return grpc::Status::OK;
        });
  }
  const auto sessions = client_->ListSessions();
  ASSERT_TRUE(sessions.ok()) << sessions.status();
  ASSERT_EQ(sessions->size(), 3);
  EXPECT_EQ((*sessions)[2].name(), "sessions/2");
}

TEST_F(ClientTest, DoesNotListForeverWhenThePageTokenRepeats) {
  v1::ListSessionsResponse page;
  page.set_next_page_token("again");
  EXPECT_CALL(*stub_, ListSessions(_, _, _))
      .Times(2)
      .WillRepeatedly(DoAll(SetArgPointee<2>(page), Return(grpc::Status::OK)));
  EXPECT_EQ(client_->ListSessions().status().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientTest, ExportsAWholeFile) {
  ExpectExport({Piece("abc", 0, 8), Piece("", 3, 8), Piece("defgh", 3, 8)});
  const auto file = client_->ExportState(v1::ExportStateRequest());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file, "abcdefgh");
}

TEST_F(ClientTest, RefusesAnExportWithAHole) {
  ExpectExport({Piece("abc", 0, 8), Piece("gh", 6, 8)});
  const absl::Status status = client_->ExportState(v1::ExportStateRequest()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), reason::kInvalidStateFile);
  EXPECT_THAT(std::string(status.message()), HasSubstr("begins at byte 6, expected 3"));
}

TEST_F(ClientTest, RefusesAnExportThatIsCut) {
  ExpectExport({Piece("abc", 0, 8)});
  EXPECT_THAT(client_->ExportState(v1::ExportStateRequest()).status().ToString(), HasSubstr("3 of 8 bytes"));
  ExpectExport({});
  EXPECT_THAT(client_->ExportState(v1::ExportStateRequest()).status().ToString(), HasSubstr("no piece"));
}

TEST_F(ClientTest, RefusesAnExportOfAnotherSizeThanAnnounced) {
  ExpectExport({Piece("abc", 0, 2)});
  EXPECT_THAT(client_->ExportState(v1::ExportStateRequest()).status().ToString(), HasSubstr("more bytes"));
  ExpectExport({Piece("abc", 0, 8), Piece("def", 3, 6)});
  EXPECT_THAT(client_->ExportState(v1::ExportStateRequest()).status().ToString(), HasSubstr("from 8 to 6"));
}

TEST_F(ClientTest, ReportsTheServersErrorOverAShortExport) {
  ExpectExport({Piece("abc", 0, 8)}, ServerError(grpc::StatusCode::ABORTED, "SESSION_BUSY"));
  EXPECT_EQ(ErrorReason(client_->ExportState(v1::ExportStateRequest()).status()), reason::kSessionBusy);
}

TEST_F(ClientTest, EndsAnExportWhoseSinkFails) {
  ExpectExport({Piece("abc", 0, 8), Piece("defgh", 3, 8)}, grpc::Status::CANCELLED);
  int calls = 0;
  const absl::Status status = client_->ExportState(v1::ExportStateRequest(), [&calls](std::string_view) {
    ++calls;
    return absl::ResourceExhaustedError("disk full");
  });
  EXPECT_EQ(status, absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(calls, 1);
}

TEST_F(ClientTest, ImportsTheTargetFirstAndThenTheFileInPieces) {
  std::string file(2 * kImportChunkBytes + 17, '\0');
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<char>(i * 2654435761u >> 24);
  auto* const writer = new ImportWriter;
  EXPECT_CALL(*stub_, ImportStateRaw(_, _)).WillOnce([&](auto*, v1::ImportStateResponse* response) {
    response->mutable_session()->set_name("sessions/new");
    return writer;
  });
  std::vector<v1::ImportStateRequest> sent;
  EXPECT_CALL(*writer, Write(_, _)).WillRepeatedly([&](const v1::ImportStateRequest& request, auto) {
    sent.push_back(request);
    return true;
  });
  EXPECT_CALL(*writer, WritesDone()).WillOnce(Return(true));
  EXPECT_CALL(*writer, Finish()).WillOnce(Return(grpc::Status::OK));

  v1::ImportStateRequest::Target target;
  target.set_session_id("new");
  const auto session = client_->ImportState(target, file);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->name(), "sessions/new");
  ASSERT_EQ(sent.size(), 4);
  EXPECT_EQ(sent[0].target().session_id(), "new");
  std::string joined;
  for (size_t i = 1; i < sent.size(); ++i) {
    ASSERT_TRUE(sent[i].has_data());
    EXPECT_LE(sent[i].data().size(), kImportChunkBytes);
    joined += sent[i].data();
  }
  EXPECT_TRUE(joined == file);
}

TEST_F(ClientTest, ReportsWhyAnImportWasCutOff) {
  auto* const writer = new ImportWriter;
  EXPECT_CALL(*stub_, ImportStateRaw(_, _)).WillOnce(Return(writer));
  EXPECT_CALL(*writer, Write(_, _)).WillOnce(Return(true)).WillOnce(Return(false));
  EXPECT_CALL(*writer, Finish()).WillOnce(Return(ServerError(grpc::StatusCode::ALREADY_EXISTS, "SESSION_EXISTS")));
  const absl::Status status =
      client_->ImportState(v1::ImportStateRequest::Target(), std::string(4 * kImportChunkBytes, 'x')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrorReason(status), reason::kSessionExists);
}

}  // namespace
}  // namespace gdn
