#include "tools/gdnctl/error_table.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr double kNotCompared = -1;
constexpr double kSkipped = -2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kColumnWidth = 12;

double Effective(double error) { return error == kNotCompared ? kInfinity : error; }

std::string FormatCell(double error, double tolerance) {
  if (error == kSkipped) return absl::StrFormat("%*s ", kColumnWidth - 1, "-");
  if (error == kNotCompared) return absl::StrFormat("%*s!", kColumnWidth - 1, "missing");
  return absl::StrFormat("%*s%c", kColumnWidth - 1, absl::StrFormat("%.1e", error), error <= tolerance ? ' ' : '!');
}

}  // namespace

double RelativeError(absl::Span<const float> got, absl::Span<const float> want) {
  if (got.size() != want.size()) return kInfinity;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double delta = double{got[i]} - double{want[i]};
    difference += delta * delta;
    norm += double{want[i]} * double{want[i]};
  }
  if (!std::isfinite(difference) || !std::isfinite(norm)) return kInfinity;
  if (norm == 0) return difference == 0 ? 0 : kInfinity;
  return std::sqrt(difference / norm);
}

ErrorTable::ErrorTable(std::vector<int32_t> layers, std::vector<std::string> paths)
    : layers_(std::move(layers)), paths_(std::move(paths)), errors_(layers_.size() * paths_.size(), kNotCompared) {}

void ErrorTable::Record(int32_t layer, size_t path, double error) {
  const auto found = std::find(layers_.begin(), layers_.end(), layer);
  assert(found != layers_.end() && path < paths_.size());
  double& cell = errors_[static_cast<size_t>(found - layers_.begin()) * paths_.size() + path];
  if (error == kSkipped) {
    cell = error;
    return;
  }
  cell = std::max(cell, std::isnan(error) ? kInfinity : error);
}

void ErrorTable::Skip(int32_t layer, size_t path) { Record(layer, path, kSkipped); }

ErrorTable::Cell ErrorTable::Worst() const {
  const bool nothing = std::ranges::all_of(errors_, [](double error) { return error == kSkipped; });
  Cell worst{.layer = -1, .path = "", .error = nothing ? kInfinity : kNotCompared};
  for (size_t i = 0; i < errors_.size(); ++i) {
    if (Effective(errors_[i]) > worst.error) {
      worst = {layers_[i / paths_.size()], paths_[i % paths_.size()], Effective(errors_[i])};
    }
  }
  return worst;
}

bool ErrorTable::Within(double tolerance) const { return std::isfinite(tolerance) && Worst().error <= tolerance; }

std::string ErrorTable::Format(double tolerance) const {
  // Path names of two words take two header lines, so that seven columns fit a terminal.
  std::string first = absl::StrFormat("%5s", "");
  std::string second = absl::StrFormat("%5s", "layer");
  for (const std::string& path : paths_) {
    const std::pair<std::string, std::string> words = absl::StrSplit(path, absl::MaxSplits(' ', 1));
    const bool two = !words.second.empty();
    absl::StrAppendFormat(&first, "%*s ", kColumnWidth - 1, two ? words.first : "");
    absl::StrAppendFormat(&second, "%*s ", kColumnWidth - 1, two ? words.second : words.first);
  }
  std::string text = StrCat(first, "\n", second, absl::StrFormat("%*s", kColumnWidth - 1, "worst"), "\n");

  const auto worse = [](double a, double b) { return Effective(a) < Effective(b) ? b : a; };
  std::vector<double> columns(paths_.size() + 1, kSkipped);
  for (size_t row = 0; row < layers_.size(); ++row) {
    absl::StrAppendFormat(&text, "%5d", layers_[row]);
    double worst = kSkipped;
    for (size_t path = 0; path < paths_.size(); ++path) {
      const double error = errors_[row * paths_.size() + path];
      text += FormatCell(error, tolerance);
      worst = worse(worst, error);
      columns[path] = worse(columns[path], error);
    }
    columns.back() = worse(columns.back(), worst);
    StrAppend(&text, FormatCell(worst, tolerance), "\n");
  }
  text += "worst";
  for (const double error : columns) text += FormatCell(error, tolerance);
  return text + "\n";
}

std::string ErrorTable::Verdict(double tolerance) const {
  const Cell worst = Worst();
  if (errors_.empty()) return "replay FAILED: nothing was compared";
  if (Within(tolerance)) {
    return absl::StrFormat("replay ok: worst relative error %.1e over %d layers", worst.error, layers_.size());
  }
  return absl::StrFormat("replay FAILED: worst relative error %.1e (layer %d, %s) is above the tolerance %.1e",
                         worst.error, worst.layer, worst.path, tolerance);
}

}  // namespace gdn
