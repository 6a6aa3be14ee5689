#include "data/image_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "data/file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

/// Longer files are read only to one byte beyond the limit, which is enough for a decoder to reject them.
void read_bytes(const InputFile& file, const ByteRange& place, std::vector<std::uint8_t>& bytes) {
  bytes.resize(std::min(place.size_bytes, kMaxImageBytes + 1));
  file.read(place.offset, std::as_writable_bytes(std::span(bytes)), "the image");
}

}  // namespace

ImageFiles::ImageFiles(std::vector<std::string> paths, const ImageFilesOptions& options)
    : paths_(std::move(paths)), problems_(paths_.size()), resize_(options.resize) {
  info_.path = "the image files";
  info_.n_samples = static_cast<std::int64_t>(paths_.size());
  info_.height = options.height;
  info_.width = options.width;
  info_.channels = options.channels;
}

void ImageFiles::read_image(std::int64_t sample, std::uint32_t, std::span<std::uint8_t> image,
                            std::int32_t& label) const {
  require(sample >= 0 && sample < info_.n_samples && image.size() == info_.image_bytes(), ErrorCode::internal,
          "image file {} of {} cannot be read into a buffer of {} bytes", sample, info_.n_samples, image.size());
  label = -1;
  // No lock is needed: each sample is read by one thread, and its problem is queried afterwards.
  std::string& problem = problems_[static_cast<std::size_t>(sample)];
  problem = read(paths_[static_cast<std::size_t>(sample)], image);
  if (!problem.empty()) std::ranges::fill(image, std::uint8_t{0});
}

std::string ImageFiles::read(const std::string& path, std::span<std::uint8_t> image) const {
  auto buffers = pool_.lend();
  try {
    const InputFile file(path);
    read_bytes(file, {0, file.size_bytes()}, buffers->bytes);
  } catch (const Error& error) {
    return error.what();
  }
  ShapedDecoder& decoder = buffers->decoder;
  if (!decoder.open(buffers->bytes)) return decoder.reason();
  const ImageShaping shaping{.image_size = info_.height, .resize = resize_};
  const bool is_square = info_.height == info_.width;
  const bool has_size =
      decoder.height() == info_.height && decoder.width() == info_.width && (!is_square || keeps_size(shaping));
  if (!has_size && !is_square)
    return fmt::format("it has {} x {} pixels (width, height), but the model needs {} x {}", decoder.width(),
                       decoder.height(), info_.width, info_.height);
  const bool good = has_size ? decoder.read_as_stored(info_.channels, image)
                             : decoder.read_shaped(shaping, 0, 0, info_.channels, image);
  return good ? "" : decoder.reason();
}

std::string lower_extension(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

bool has_image_name(const std::string& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

bool FileDecoder::open(SourceFile& file, int short_side, std::string_view given) {
  if (!file.bad.empty()) return false;
  try {
    if (file.row >= 0) {
      file.n_bytes = given.size();
      bytes_.assign(given.begin(), given.end());
    } else {
      const InputFile input(file.archive ? *file.archive : file.path);
      const ByteRange place = file.archive ? file.place : ByteRange{0, input.size_bytes()};
      file.n_bytes = place.size_bytes;
      read_bytes(input, place, bytes_);
    }
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
  const bool resizes = short_side > 0 && shorter > short_side;
  // As in torchvision's resize, the longer side is scaled in proportion and rounded down.
  const auto side = [&](int length) {
    return resizes ? static_cast<int>(std::int64_t{length} * short_side / shorter) : length;
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
