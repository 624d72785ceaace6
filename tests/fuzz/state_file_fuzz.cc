// State files: of a tier, of an import, and while they arrive. What is read is written, and read again.
#include <cstring>

#include "base/hash.h"
#include "state_store/state_file/encode.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

// Gives the header the checksum that it should have, so that changes to it get past that.
std::string Sealed(std::string_view bytes) {
  constexpr std::string_view kKey = "\"header_checksum\":\"";
  constexpr size_t kDigits = 32;
  std::string sealed(bytes);
  const auto end = SafetensorsHeaderEnd(bytes);
  if (!end.ok()) return sealed;
  const size_t key = sealed.find(kKey);
  if (key == std::string::npos || key + kKey.size() + kDigits >= *end) return sealed;
  sealed.replace(key + kKey.size(), kDigits, kDigits, '0');
  const std::string digits = HashBytes(std::string_view(sealed).substr(0, *end)).ToHex();
  sealed.replace(key + kKey.size(), kDigits, digits);
  return sealed;
}

void ReadAndWriteAgain(const StateFile& file, const std::shared_ptr<const std::string>& bytes) {
  const auto layout = StateLayout::Make(file.header.dims, /*max_draft=*/8, file.base_dtype);
  if (!layout.ok()) return fuzz::CheckRefusal(layout.status());
  auto image = ReadImage(file, *layout, bytes);
  if (!image.ok()) return fuzz::CheckRefusal(image.status());
  const auto shared = std::make_shared<const SessionImage>(*std::move(image));
  const auto written = EncodeStateFile(shared, {.include_owner = file.has_owner});
  if (!written.ok()) return fuzz::CheckRefusal(written.status());
  std::string again;
  for (const std::string_view piece : written->pieces()) again += piece;
  const auto parsed = ParseStateFile(again);
  GDN_FUZZ_CHECK(parsed.ok(), parsed.status().ToString());
  GDN_FUZZ_CHECK(parsed->header.dims == file.header.dims && parsed->header.epoch == file.header.epoch &&
                     parsed->header.id == file.header.id && parsed->header.layers == file.header.layers &&
                     parsed->has_owner == file.has_owner && parsed->layers.size() == file.layers.size(),
                 "the file that was written is not the one that was read");
}

void ReadArriving(std::string_view bytes, bool is_file) {
  const auto header_end = SafetensorsHeaderEnd(bytes);
  if (!header_end.ok()) return;
  auto arriving = ArrivingStateFile::Open(bytes.substr(0, *header_end), static_cast<int64_t>(bytes.size()));
  if (!arriving.ok()) {
    GDN_FUZZ_CHECK(!is_file, arriving.status().ToString());
    return;
  }
  const size_t data = bytes.size() - *header_end;
  absl::Status status;
  for (const size_t part : {data / 3, data / 2, data}) {
    if (status.ok()) status = arriving->Check(bytes.substr(0, *header_end + part));
  }
  if (status.ok()) status = arriving->Finish(bytes).status();
  GDN_FUZZ_CHECK(status.ok() == is_file, status.ToString());
}

void ReadFile(const std::string& bytes) {
  const auto shared = std::make_shared<const std::string>(bytes);
  const auto file = ParseStateFile(*shared);
  fuzz::CheckRefusal(file.status());
  fuzz::CheckRefusal(ParseStateFileHeader(*shared, static_cast<int64_t>(shared->size())).status());
  ReadArriving(*shared, file.ok());
  if (file.ok()) ReadAndWriteAgain(*file, shared);
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  gdn::ReadFile(bytes);
  if (const std::string sealed = gdn::Sealed(bytes); sealed != bytes) gdn::ReadFile(sealed);
  return 0;
}
