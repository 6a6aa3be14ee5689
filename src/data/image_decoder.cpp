#include "data/image_decoder.h"

#include "lockstep/error.h"

namespace lockstep::data {

bool ImageDecoder::open(std::span<const std::uint8_t> bytes) {
  if (bytes.empty()) return bad("it is empty (0 bytes)");
  if (bytes.size() > kMaxImageBytes)
    return bad(fmt::format("its {} bytes exceed the limit of {}", bytes.size(), kMaxImageBytes));
  format_ = format_of(bytes);
  const auto open_with = [&](auto& decoder) {
    if (!decoder.open(bytes)) return bad(decoder.reason());
    width_ = decoder.width();
    height_ = decoder.height();
    is_grey_ = decoder.is_grey();
    return true;
  };
  if (format_ == ImageFormat::png) return open_with(png_);
  if (bytes[0] != 0xff || (bytes.size() > 1 && bytes[1] != 0xd8)) return bad("it is neither a JPEG nor a PNG file");
  return open_with(jpeg_);
}

bool ImageDecoder::start(int eighths, int channels) {
  channels_ = channels;
  eighths_ = 8;
  decoded_width_ = width_;
  decoded_height_ = height_;
  area_ = {.width = width_, .height = height_};
  if (format_ == ImageFormat::png) return true;
  if (!jpeg_.start(eighths, channels)) return bad(jpeg_.reason());
  eighths_ = eighths;
  decoded_width_ = jpeg_.decoded_width();
  decoded_height_ = jpeg_.decoded_height();
  area_ = jpeg_.decoded_area();
  return true;
}

bool ImageDecoder::crop(const PixelArea& needed, RowsBelow rest) {
  if (format_ == ImageFormat::png) return true;
  if (!jpeg_.crop(needed, rest)) return bad(jpeg_.reason());
  area_ = jpeg_.decoded_area();
  return true;
}

bool ImageDecoder::read_pixels(std::span<std::uint8_t> pixels) {
  if (format_ == ImageFormat::png) return png_.read_pixels(channels_, pixels) || bad(png_.reason());
  return jpeg_.read_pixels(pixels) || bad(jpeg_.reason());
}

const char* name_of(ImageFormat format) { return format == ImageFormat::png ? "PNG" : "JPEG"; }

ImageFormat format_of(std::span<const std::uint8_t> bytes) {
  return is_png(bytes) ? ImageFormat::png : ImageFormat::jpeg;
}

}  // namespace lockstep::data
