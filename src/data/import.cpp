#include "data/import.h"

#include "lockstep/error.h"

namespace lockstep::data {

void check_options(const ImportOptions& options) {
  const auto [alignment_bytes, chunk_bytes] = options.placement;
  require(
      chunk_bytes == 0 || chunk_bytes >= alignment_bytes, ErrorCode::usage,
      "--chunk {} is smaller than --alignment {}: each chunk would begin at a multiple of the alignment, and most of "
      "the file would be empty; use a smaller --alignment",
      chunk_bytes, alignment_bytes);
  for (const auto& values : {options.mean, options.stddev})
    require(values.empty() || values.size() == ChannelSums::kChannels, ErrorCode::usage,
            "--mean and --std require {} values (red, green, blue), not {}", ChannelSums::kChannels, values.size());
}

void set_statistics(const ImportOptions& options, const ChannelSums& sums, ImageSetInfo& info) {
  info.mean = options.mean;
  info.stddev = options.stddev;
  for (std::size_t c = 0; c < ChannelSums::kChannels && options.mean.empty(); ++c) info.mean.push_back(sums.mean(c));
  for (std::size_t c = 0; c < ChannelSums::kChannels && options.stddev.empty(); ++c)
    info.stddev.push_back(sums.stddev(c));
  for (const float s : info.stddev)
    require(std::isfinite(s) && s > 0.0f, ErrorCode::data_source,
            "the standard deviation of a channel of {} is {}; give --std", options.source, s);
}

}  // namespace lockstep::data
