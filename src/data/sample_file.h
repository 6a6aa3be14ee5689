// The file of an image set and a range of its samples. Labels are held in memory, and are checked when it is opened.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/file.h"
#include "data/image_file.h"

namespace lockstep::data {

struct SampleFile {
  InputFile file;
  ImageFile layout;
  ImageSetInfo info;
  std::vector<std::int32_t> labels;

  /// Throws data_range unless [start, end) is a range of the samples; end 0: up to the last.
  SampleFile(const std::string& path, std::int64_t start, std::int64_t end);

  /// Bytes [begin, begin + target.size()) of /images, which belong to this sample.
  void read(std::int64_t sample, std::uint64_t begin, std::span<std::uint8_t> target) const;
};

/// Throws internal unless the sample exists and `image` has the size of an image of the set.
void check_request(const ImageSetInfo& info, std::int64_t sample, std::span<const std::uint8_t> image);

/// The position of a sample in the file, by which random numbers are drawn.
inline std::uint32_t id_of(const ImageSetInfo& info, std::int64_t sample) {
  return static_cast<std::uint32_t>(info.first_sample + sample);
}

}  // namespace lockstep::data
