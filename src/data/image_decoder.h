// Decodes the bytes of an image file, JPEG or PNG, to 8-bit pixels. The format is detected from the bytes, not from the
// name. The bytes are not trusted: sizes are checked before memory is allocated, and damage is reported.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/image_limits.h"
#include "data/jpeg.h"
#include "data/pixel_area.h"

namespace lockstep::data {

enum class ImageFormat : std::uint8_t { jpeg, png };

/// Decodes one image after the other, in one thread. Its memory is reused.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  // Each function returns false if the image is bad; reason() then describes why, in a few words.

  /// Reads the header. `bytes` must stay valid until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  ImageFormat format() const { return format_; }
  int width() const { return width_; }  // pixels, as stored
  int height() const { return height_; }
  bool is_grey() const { return is_grey_; }  // stored with one channel, besides alpha
  /// Chooses the channels, 1 (grey) or 3 (RGB), and the size: the stored one times `eighths` / 8 (1, 2, 4 or 8),
  /// rounded up. Images that cannot be decoded at a smaller size (PNG) are decoded as a whole: see decoded_eighths().
  bool start(int eighths, int channels);
  int decoded_eighths() const { return eighths_; }
  int decoded_width() const { return decoded_width_; }
  int decoded_height() const { return decoded_height_; }
  /// Decodes only an area of the decoded image that contains `needed` (JpegDecoder::crop()). PNG images are decoded as
  /// a whole. To be called after start().
  bool crop(const PixelArea& needed, RowsBelow rest);
  /// What read_pixels() decodes.
  PixelArea decoded_area() const { return area_; }
  /// Row-major: the pixels of decoded_area(), of `channels` bytes.
  bool read_pixels(std::span<std::uint8_t> pixels);

  const std::string& reason() const { return reason_; }

 private:
  bool bad(std::string why);  // false

  struct Decoders;
  std::unique_ptr<Decoders> decoders_;
  ImageFormat format_ = ImageFormat::jpeg;
  int width_ = 0, height_ = 0, decoded_width_ = 0, decoded_height_ = 0;
  PixelArea area_;
  bool is_grey_ = false;
  int eighths_ = 8, channels_ = 3;
  std::string reason_;
};

/// "JPEG", "PNG"
const char* name_of(ImageFormat format);
/// The format of bytes that were decoded before.
ImageFormat format_of(std::span<const std::uint8_t> bytes);

}  // namespace lockstep::data
