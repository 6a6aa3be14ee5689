#include "data/import.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/file.h"
#include "base/hub_cache.h"
#include "base/model_files.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

enum class Zero { possible, impossible };

constexpr std::int64_t kRecordsPerUpdate = 500;

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

ImportResult import_records(const ImportOptions& options, const ImportProgress& progress, const ImageRecords& records) {
  check_options(options);
  const int requested = requested_channels(options), channels = requested > 0 ? requested : records.channels;
  require(channels == records.channels || records.channels == 1, ErrorCode::usage,
          "the images of {} have {} channels, but {} is requested", records.format, records.channels, channels);
  require_no_input(options.output, records.files);
  const auto n_classes = static_cast<std::int64_t>(records.class_names.size());
  const std::int64_t n_requested = options.per_class > 0 ? options.per_class * n_classes
                                   : options.limit > 0   ? options.limit
                                                         : records.n;
  require(n_requested <= records.n, ErrorCode::data_range, "{} samples are requested, but {} contains {}", n_requested,
          options.source, records.n);

  ImageFileWriter writer(options.output, options.replace, n_requested, records.height, records.width, channels,
                         options.placement);
  ImportResult result;
  result.samples_per_class.assign(records.class_names.size(), 0);
  ChannelSums sums(static_cast<std::size_t>(channels));
  const std::size_t n_pixels = std::size_t(records.height) * std::size_t(records.width);
  std::vector<std::uint8_t> image(n_pixels * static_cast<std::size_t>(records.channels)), rgb;
  std::int64_t n_imported = 0;
  for (std::int64_t i = 0; i < records.n && n_imported < n_requested; ++i) {
    if (progress && i % kRecordsPerUpdate == 0) progress(i, records.n);
    const std::int32_t label = records.read(i, image);
    std::int64_t& count = result.samples_per_class[static_cast<std::size_t>(label)];
    if (options.per_class > 0 && count == options.per_class) continue;
    ++count;
    ++n_imported;
    if (channels > records.channels) {  // grey, in three equal channels
      rgb.resize(3 * n_pixels);
      for (std::size_t k = 0; k < rgb.size(); ++k) rgb[k] = image[k / 3];
    }
    const std::vector<std::uint8_t>& stored = rgb.empty() ? image : rgb;
    sums.add(stored.data(), static_cast<std::int64_t>(n_pixels));
    writer.append(stored, std::span(&label, 1));
  }
  for (std::size_t k = 0; k < records.class_names.size() && options.per_class > 0; ++k)
    require(result.samples_per_class[k] == options.per_class, ErrorCode::data_range,
            "{} samples of each class are requested, but {} contains {} of class {} ({})", options.per_class,
            options.source, result.samples_per_class[k], k, records.class_names[k]);

  result.info = describe_import(options, n_imported, records.class_names, sums);
  result.info.height = records.height;
  result.info.width = records.width;
  for (const std::string& file : records.files) result.files.push_back(source_name(file));
  std::string source = fmt::format("{}: {}", records.format, fmt::join(result.files, ", "));
  if (options.per_class > 0) source += fmt::format("; the first {} of each class", options.per_class);
  if (options.per_class == 0 && options.limit > 0) source += fmt::format("; the first {}", options.limit);
  writer.finish(result.info, source);
  result.size_bytes = std::filesystem::file_size(options.output);
  return result;
}

}  // namespace lockstep::data
