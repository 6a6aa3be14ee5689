// Decodes the bytes of image files to 8-bit pixels: JPEG with libjpeg-turbo, and PNG with libpng. The bytes are not
// trusted: sizes are checked before memory is allocated, and damage is reported. Each decoder decodes one image after
// the other, in one thread. Its functions return false if the image is bad; reason() then describes why, in a few
// words.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/resize.h"

namespace lockstep::data {

// Limits of encoded images, which are checked before memory is allocated for the pixels.

/// Maximum number of pixels of an image. While a progressive JPEG image is decoded, each pixel needs 9 bytes.
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{1} << 26;
inline constexpr int kMaxImageSide = 65535;  // pixels
inline constexpr std::uint64_t kMaxImageBytes = std::uint64_t{1} << 28;

/// What all decoders have: the image whose header was read, and why it is bad.
class OpenedImage {
 public:
  int width() const { return width_; }  // pixels, as stored
  int height() const { return height_; }
  bool is_grey() const { return is_grey_; }  // stored with one channel, besides alpha
  const std::string& reason() const { return reason_; }

 protected:
  bool bad(std::string why) {  // false
    reason_ = std::move(why);
    return false;
  }

  int width_ = 0, height_ = 0;
  bool is_grey_ = false;
  std::string reason_;
};

/// What happens to the rows below those that are needed.
enum class RowsBelow : std::uint8_t { ignored, parsed };

/// Every warning of the library (truncated, corrupt) counts as damage. Orientation tags are ignored, as in
/// torchvision's ImageFolder. Only jpeg.cpp includes the header of the library. The memory is reused.
class JpegDecoder : public OpenedImage {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  /// Reads the header. `bytes` must stay valid until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  /// Chooses the size of the decoded image, the stored size times `eighths` / 8 (1, 2, 4 or 8), rounded up, and its
  /// channels: 3 (RGB) or 1 (grey).
  bool start(int eighths, int channels = 3);
  int decoded_width() const;
  int decoded_height() const;
  /// Decodes only an area of the decoded image that contains `needed`. Its pixels in `needed` are those of the whole
  /// image, bit by bit. The rows above are parsed, but neither transformed nor converted, and so are the blocks on the
  /// left and right. The rows below are only parsed if `rest` says so, to find damage there. To be called after
  /// start().
  bool crop(const PixelArea& needed, RowsBelow rest);
  /// What read_pixels() decodes: the whole image, or what crop() chose.
  PixelArea decoded_area() const;
  /// Row-major: the pixels of decoded_area(), of `channels` bytes. Grey images become RGB with three equal channels;
  /// the grey of a colour image is its brightness (Y of JPEG). CMYK is converted to RGB.
  bool read_pixels(std::span<std::uint8_t> pixels);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string jpeg_version();  // of libjpeg-turbo, "2.1.5"

/// Whether the bytes begin with the signature of PNG.
bool is_png(std::span<const std::uint8_t> bytes);

/// Every checksum is verified, and a missing end counts as damage. Only png.cpp includes the header of the library.
///
/// All kinds of PNG become 8 bits per channel, as Pillow's convert("L") and convert("RGB") do it: palettes and fewer
/// bits are expanded, interlaced images are assembled, alpha and transparent colours are dropped. Images of 16 bits are
/// scaled (v / 257, rounded). Gamma and colour profiles are ignored. For an animation, the default image is taken.
class PngDecoder : public OpenedImage {
 public:
  PngDecoder();
  ~PngDecoder();
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  /// Reads the header. `bytes` must stay valid until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  /// height() x width() x channels bytes, row-major; channels: 1 (grey, by the weights of ITU-R 601-2 for colours) or 3
  /// (RGB). To be called once after open().
  bool read_pixels(int channels, std::span<std::uint8_t> pixels);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string png_version();  // of libpng, "1.6.39"

enum class ImageFormat : std::uint8_t { jpeg, png };

/// Decodes both. The format is detected from the bytes, not from the name.
class ImageDecoder : public OpenedImage {
 public:
  /// Reads the header. `bytes` must stay valid until read_pixels() is done.
  bool open(std::span<const std::uint8_t> bytes);
  ImageFormat format() const { return format_; }
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

 private:
  JpegDecoder jpeg_;
  PngDecoder png_;
  ImageFormat format_ = ImageFormat::jpeg;
  int decoded_width_ = 0, decoded_height_ = 0;
  PixelArea area_;
  int eighths_ = 8, channels_ = 3;
};

/// "JPEG", "PNG"
const char* name_of(ImageFormat format);
/// The format of bytes that were decoded before.
ImageFormat format_of(std::span<const std::uint8_t> bytes);

}  // namespace lockstep::data
