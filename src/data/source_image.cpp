#include "data/source_image.h"

#include <algorithm>

#include "data/file.h"
#include "lockstep/error.h"

namespace lockstep::data {

bool FileDecoder::open(SourceFile& file) {
  if (!file.bad.empty()) return false;
  try {
    const InputFile input(file.path);
    file.n_bytes = input.size_bytes();
    // Longer files are read only to one byte beyond the limit, which is enough for the decoder to reject them.
    bytes_.resize(std::min(file.n_bytes, kMaxImageBytes + 1));
    input.read(0, std::as_writable_bytes(std::span(bytes_)), "the image");
  } catch (const Error& error) {
    file.bad = error.what();
    return false;
  }
  if (!decoder_.open(bytes_)) file.bad = decoder_.reason();
  if (!file.bad.empty()) return false;
  file.height = decoder_.height();
  file.width = decoder_.width();
  file.is_grey = decoder_.is_grey();
  file.format = decoder_.format();
  const int shorter = std::min(file.height, file.width);
  const bool resizes = short_side_ > 0 && shorter > short_side_;
  // As in torchvision's resize, the longer side is scaled in proportion and rounded down.
  const auto side = [&](int length) {
    return resizes ? static_cast<int>(std::int64_t{length} * short_side_ / shorter) : length;
  };
  file.stored_height = side(file.height);
  file.stored_width = side(file.width);
  return true;
}

std::span<const std::uint8_t> FileDecoder::decode(SourceFile& file, int channels) {
  pixels_.resize(static_cast<std::size_t>(channels) * static_cast<std::size_t>(file.height) * file.width);
  if (!decoder_.start(8, channels) || !decoder_.read_pixels(pixels_)) file.bad = decoder_.reason();
  if (!file.bad.empty() || (file.stored_height == file.height && file.stored_width == file.width)) return pixels_;
  resized_.resize(static_cast<std::size_t>(channels) * file.stored_pixels());
  resizer_.resize({pixels_.data(), file.height, file.width, channels, std::ptrdiff_t{file.width} * channels},
                  {0, 0, double(file.width), double(file.height)}, file.stored_height, file.stored_width, resized_);
  return resized_;
}

}  // namespace lockstep::data
