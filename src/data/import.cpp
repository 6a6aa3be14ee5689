#include "data/import.h"

#include <algorithm>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::data {

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
}

int requested_channels(const ImportOptions& options) {
  if (options.channels > 0) return options.channels;
  return static_cast<int>(std::max(options.mean.size(), options.stddev.size()));
}

void set_statistics(const ImportOptions& options, const ChannelSums& sums, ImageSetInfo& info) {
  info.channels = static_cast<int>(sums.channels());
  info.mean = options.mean;
  info.stddev = options.stddev;
  for (std::size_t c = 0; c < sums.channels() && options.mean.empty(); ++c) info.mean.push_back(sums.mean(c));
  for (std::size_t c = 0; c < sums.channels() && options.stddev.empty(); ++c) info.stddev.push_back(sums.stddev(c));
  for (const float s : info.stddev)
    require(std::isfinite(s) && s > 0.0f, ErrorCode::data_source,
            "the standard deviation of a channel of {} is {}; give --std", options.source, s);
}

}  // namespace lockstep::data
