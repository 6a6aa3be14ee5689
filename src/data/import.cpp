#include "data/import.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/file.h"
#include "base/utf8.h"

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

enum class Zero { possible, impossible };

/// Checks one option that was given. Statistics must be for values in [0, 1]; statistics of values from 0 to 255 are a
/// common mistake.
void check_statistics(const char* option, const std::vector<float>& values, Zero zero) {
  for (const float value : values) {
    const bool fits = value <= 1 && (value > 0 || (value == 0 && zero == Zero::possible));  // not NaN
    require(fits, ErrorCode::usage,
            "{} is for pixel values from 0 to 1: expected numbers {} 0 and at most 1, found {}{}", option,
            zero == Zero::possible ? "of at least" : "greater than", value,
            value > 1 && value <= 255
                ? fmt::format("; if it is for values from 0 to 255, divide it by 255: {:.4g}", value / 255)
                : "");
  }
}

}  // namespace

void check_options(const ImportOptions& options) {
  const auto [alignment_bytes, chunk_bytes] = options.placement;
  require(
      chunk_bytes == 0 || chunk_bytes >= alignment_bytes, ErrorCode::usage,
      "--chunk {} is smaller than --alignment {}: each chunk would begin at a multiple of the alignment, and most of "
      "the file would be empty; use a smaller --alignment",
      chunk_bytes, alignment_bytes);
  const auto channels = static_cast<std::size_t>(requested_channels(options));
  for (const auto& [option, values] : {std::pair{"--mean", options.mean}, std::pair{"--std", options.stddev}})
    require(values.empty() || (values.size() == channels && (channels == 1 || channels == ChannelSums::kMaxChannels)),
            ErrorCode::usage, "{} requires one value for grey images or three (red, green, blue), found {}{}", option,
            values.size(), channels == values.size() ? "" : fmt::format(" for {} channel(s)", channels));
  check_statistics("--mean", options.mean, Zero::possible);
  check_statistics("--std", options.stddev, Zero::impossible);
}

std::optional<std::vector<std::string>> read_lines(const std::string& path) {
  require_regular_file(path, ErrorCode::data_source);
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    require(is_utf8(line), ErrorCode::data_source, "{}: expected text in UTF-8, found \"{}\": convert the file", path,
            valid_utf8(line));
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

int requested_channels(const ImportOptions& options) {
  if (options.channels > 0) return options.channels;
  return static_cast<int>(std::max(options.mean.size(), options.stddev.size()));
}

ImageSetInfo describe_import(const ImportOptions& options, std::int64_t n_samples, std::vector<std::string> class_names,
                             const ChannelSums& sums) {
  ImageSetInfo info;
  info.path = options.output;
  info.split = options.split;
  info.n_samples = n_samples;
  info.classes = static_cast<int>(class_names.size());
  info.class_names = std::move(class_names);
  info.channels = static_cast<int>(sums.channels());
  info.mean = options.mean;
  info.stddev = options.stddev;
  for (std::size_t c = 0; c < sums.channels() && options.mean.empty(); ++c) info.mean.push_back(sums.mean(c));
  for (std::size_t c = 0; c < sums.channels() && options.stddev.empty(); ++c) info.stddev.push_back(sums.stddev(c));
  for (const float s : info.stddev)
    require(std::isfinite(s) && s > 0.0f, ErrorCode::data_source,
            "the standard deviation of a channel of {} is {}; give --std", options.source, s);
  return info;
}

}  // namespace lockstep::data
