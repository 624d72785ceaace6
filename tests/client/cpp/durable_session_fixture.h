// Fixture for tests of DurableSession: inputs, a session on a FakeGdnService, and comparisons with an undisturbed run.
//
// Thread safety: for one thread. Ownership: the fixture owns its service, client and session.
//
//   TEST_F(Durable, GoesOnAfterACrash) {
//     const Truth truth = Undisturbed(1, [this] { RunPlain(1, 3); });
//     Start({});
//     service_->Plan(2, Fault::kCrashAfter);
//     RunPlain(1, 3);
//     ExpectLike(truth);
//   }
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/string_cat.h"
#include "client/cpp/durable_session.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gtest/gtest.h"
#include "tests/support/random.h"

namespace gdn {

inline constexpr char kId[] = "chat";
inline constexpr char kName[] = "sessions/chat";

inline v1::Tensor Input(const std::vector<int64_t>& leading, uint64_t seed) {
  v1::Tensor tensor;
  int64_t tokens = 1;
  for (const int64_t dim : leading) {
    tensor.add_shape(dim);
    tokens *= dim;
  }
  tensor.add_shape(kToyHidden);
  tensor.set_dtype(v1::DTYPE_F32);
  Random random(seed);
  for (int64_t i = 0; i < tokens * kToyHidden / 2; ++i) {
    const uint64_t word = random.Next();
    tensor.mutable_data()->append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return tensor;
}

inline v1::PrefillRequest PrefillOf(int32_t layer, int64_t tokens, uint64_t seed) {
  v1::PrefillRequest request;
  request.set_layer(layer);
  *request.mutable_hidden_states()->mutable_hidden_states() = Input({tokens}, seed);
  return request;
}

inline v1::DecodeRequest DecodeOf(int32_t layer, uint64_t seed, int64_t tokens = 1, bool draft = false) {
  v1::DecodeRequest request;
  request.set_layer(layer);
  request.set_draft(draft);
  *request.mutable_hidden_states()->mutable_hidden_states() = Input({1, tokens}, seed);
  return request;
}

// The faults that a DurableSession hides from its caller.
inline constexpr Fault kHiddenFaults[] = {Fault::kUnavailable, Fault::kLoseReply, Fault::kLate,     Fault::kCrashBefore,
                                          Fault::kCrashAfter,  Fault::kDropReply, Fault::kRollBack, Fault::kLoseState};

inline DurableSessionOptions Quick() {
  return {.try_timeout = absl::Seconds(60),
          .overall_timeout = absl::Seconds(300),
          .first_backoff = absl::Microseconds(1),
          .longest_backoff = absl::Microseconds(100)};
}

class Durable : public ::testing::Test {
 protected:
  void Start(FakeGdnService::Options options, DurableSessionOptions durable = Quick()) {
    session_.reset();
    client_.reset();
    server_.reset();
    options.layers = std::max(options.layers, 1);
    options.traces = true;
    service_ = std::make_unique<FakeGdnService>(std::move(options));
    server_ = std::make_unique<LoopbackServer>(service_.get());
    client_ = server_->Connect();
    v1::CreateSessionRequest create;
    create.set_session_id(kId);
    create.set_model("models/toy");
    auto session = DurableSession::Create(*client_, create, durable);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    outputs_.clear();
  }

  // Run one step, and keep its output for comparisons.
  absl::Status Prefill(int32_t layer, int64_t tokens, uint64_t seed) {
    const auto reply = session_->Prefill(PrefillOf(layer, tokens, seed));
    if (reply.ok()) outputs_.push_back(reply->output().data());
    return reply.status();
  }
  absl::Status Decode(int32_t layer, uint64_t seed, int64_t tokens = 1, bool draft = false) {
    const auto reply = session_->Decode(DecodeOf(layer, seed, tokens, draft));
    if (reply.ok()) outputs_.push_back(reply->output().data());
    return reply.status();
  }

  // Decodes a draft that is a tree with these parents.
  absl::Status DraftTree(int32_t layer, uint64_t seed, const std::vector<int32_t>& parents) {
    v1::DecodeRequest request = DecodeOf(layer, seed, static_cast<int64_t>(parents.size()), /*draft=*/true);
    request.mutable_draft_parents()->Add(parents.begin(), parents.end());
    const auto reply = session_->Decode(request);
    if (reply.ok()) outputs_.push_back(reply->output().data());
    return reply.status();
  }

  // Runs a prefill of 5 tokens and `steps` decodes in every layer.
  void RunPlain(int layers, int steps) {
    for (int32_t layer = 0; layer < layers; ++layer) ASSERT_EQ(Prefill(layer, 5, 100 + layer), absl::OkStatus());
    for (int step = 0; step < steps; ++step) {
      for (int32_t layer = 0; layer < layers; ++layer) {
        ASSERT_EQ(Decode(layer, 1000 + step * layers + layer), absl::OkStatus()) << "step " << step;
      }
    }
  }

  // The outputs and final states of a run without faults.
  struct Truth {
    std::vector<std::string> outputs;
    std::string states;
  };
  Truth Undisturbed(int layers, const std::function<void()>& run) {
    Start({.layers = layers});
    run();
    return {outputs_, service_->States(kName)};
  }
  // Calls run(every) for each fault in each of the first `calls` calls and for each value of `checkpoint_every`. Each
  // run has a new service with two layers that makes checkpoints after `every` tokens.
  void ForEachFault(int calls, const std::vector<int64_t>& checkpoint_every, const std::function<void(int64_t)>& run) {
    for (const Fault fault : kHiddenFaults) {
      for (const int64_t every : checkpoint_every) {
        for (int call = 0; call < calls; ++call) {
          SCOPED_TRACE(StrCat("fault ", static_cast<int>(fault), ", call ", call, ", checkpoint every ", every));
          Start({.layers = 2, .checkpoint_every_tokens = every});
          service_->Plan(call, fault);
          run(every);
        }
      }
    }
  }
  void ExpectLike(const Truth& truth) {
    EXPECT_TRUE(outputs_ == truth.outputs) << outputs_.size() << " of " << truth.outputs.size() << " outputs";
    EXPECT_EQ(service_->States(kName), truth.states);
  }

  std::unique_ptr<FakeGdnService> service_;
  std::unique_ptr<LoopbackServer> server_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<DurableSession> session_;
  std::vector<std::string> outputs_;
};

}  // namespace gdn
