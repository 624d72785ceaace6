// Every parser of bytes that somebody else has written costs no more than in proportion to them: 100 times the input
// takes less than 1,000 times the work; one that looks at all before it for each part would take 10,000 times.
#include <ctime>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "base/files/safetensors.h"
#include "base/string_cat.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_files.h"
#include "server/checkpoint/gguf_file.h"
#include "server/checkpoint/model_config.h"
#include "server/config/quota_section.h"
#include "server/rpc/callers/principal_list.h"
#include "server/security/token_list.h"
#include "tests/support/gguf_writer.h"

namespace gdn::growth_test {
namespace {

// Nanoseconds of a processor that this thread has used: what others do meanwhile counts for nothing.
int64_t WorkOf(const std::function<void()>& run) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  int64_t least = INT64_MAX;
  for (int i = 0; i < 3; ++i) {
    const int64_t begin = now();
    run();
    least = std::min(least, now() - begin);
  }
  return least;
}

// `text(n)` has n parts; `parse` says whether it was taken.
void ExpectProportional(const std::string& name, int parts, const std::function<std::string(int)>& text,
                        const std::function<bool(const std::string&)>& parse) {
  std::vector<int64_t> work;
  for (const int times : {1, 10, 100}) {
    const std::string input = text(parts * times);
    bool good = true;
    work.push_back(WorkOf([&] { good = good && parse(input); }));
    EXPECT_TRUE(good) << name << " of " << parts * times;
  }
  std::cout << name << ": " << parts << " parts, 10 times as many, 100 times: " << work[0] / 1000 << ", "
            << work[1] / 1000 << ", " << work[2] / 1000 << " us of a processor\n";
  EXPECT_LT(work[2], 1000 * std::max<int64_t>(work[0], 20'000)) << name;
}

// `{PART,PART,..}` between `begin` and `end`.
std::string Listed(const std::string& begin, int count, const std::function<std::string(int)>& part,
                   const std::string& end, const char* separator = ",") {
  std::string text = begin;
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : separator) + part(i);
  return text + end;
}

std::string Digest(int i) {
  std::string digits = std::to_string(i);
  return digits + std::string(64 - digits.size(), 'a');
}

TEST(Growth, OfSafetensorsHeaders) {
  const auto text = [](int count) {
    const std::string header = Listed(
        "{", count,
        [](int i) { return StrCat("\"t", i, "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}"); }, "}");
    std::string size(8, '\0');
    for (int i = 0; i < 8; ++i) size[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    return size + header;
  };
  const auto parse = [](const std::string& file) { return SafetensorsFile::Parse(file).ok(); };
  ExpectProportional("safetensors, tensors", 300, text, parse);
  const auto metadata = [](int count) {
    const std::string header = Listed(
        "{\"__metadata__\":{", count, [](int i) { return StrCat("\"k", i, "\":\"v\""); }, "}}");
    std::string size(8, '\0');
    for (int i = 0; i < 8; ++i) size[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    return size + header;
  };
  ExpectProportional("safetensors, metadata", 300, metadata, parse);
}

TEST(Growth, OfGgufHeaders) {
  const auto parse = [](const std::string& file) { return GgufFile::Parse(file).ok(); };
  ExpectProportional(
      "GGUF, keys", 300,
      [](int count) {
        GgufWriter writer;
        writer.Text("general.architecture", "qwen35");
        for (int i = 0; i < count; ++i) writer.Int(StrCat("qwen35.key", i), 1);
        return writer.Bytes();
      },
      parse);
  ExpectProportional(
      "GGUF, tensors", 300,
      [](int count) {
        GgufWriter writer;
        for (int i = 0; i < count; ++i) writer.Tensor(StrCat("blk.", i), {1}, GgmlType::kF32, std::string(4, '\0'));
        return writer.Bytes();
      },
      parse);
  ExpectProportional(
      "GGUF, a tokenizer's words", 300,
      [](int count) {
        GgufWriter writer;
        writer.Texts("tokenizer.ggml.tokens", std::vector<std::string>(static_cast<size_t>(count), "word"));
        return writer.Bytes();
      },
      parse);
}

TEST(Growth, OfCheckpointFiles) {
  ExpectProportional(
      "checkpoint index", 300,
      [](int count) {
        return Listed(
            "{\"weight_map\":{", count, [](int i) { return StrCat("\"layer.", i, "\":\"model-1.safetensors\""); },
            "}}");
      },
      [](const std::string& text) { return ParseCheckpointIndex(text, "INDEX").ok(); });
  ExpectProportional(
      "config.json with keys that nobody knows", 300,
      [](int count) {
        return Listed(
            "{\"model_type\":\"unknown\",", count, [](int i) { return StrCat("\"k", i, "\":[1]"); }, "}");
      },
      [](const std::string& text) { return !ParseModelConfig(text).ok(); });
}

TEST(Growth, OfListsOfCallers) {
  ExpectProportional(
      "--tokens-file", 100,
      [](int count) {
        return Listed(
            "{\"subjects\":[", count,
            [](int i) {
              return StrCat("{\"subject\":\"s", i, "\",\"roles\":[\"user\"],\"tokens\":[{\"sha256\":\"", Digest(i),
                            "\"}]}");
            },
            "]}");
      },
      [](const std::string& text) { return ParseTokenList(text, "FILE").ok(); });
  ExpectProportional(
      "--principals", 100,
      [](int count) {
        return Listed(
            "{\"principals\":[", count,
            [](int i) { return StrCat("{\"name\":\"p", i, "\",\"sha256\":[\"", Digest(i), "\"],\"weight\":1}"); },
            "]}");
      },
      [](const std::string& text) { return ParsePrincipalList(text, "FILE").ok(); });
  ExpectProportional(
      "quotas", 30,
      [](int count) {
        return Listed(
            "{principals: {", count, [](int i) { return StrCat("p", i, ": {sessions: 1}"); }, "}}", ", ");
      },
      [](const std::string& text) {
        std::vector<ConfigFault> faults;
        ParseQuotas(text, faults);
        return faults.empty();
      });
}

}  // namespace
}  // namespace gdn::growth_test
