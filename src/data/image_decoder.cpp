#include "data/image_decoder.h"

#include "data/jpeg.h"
#include "data/png.h"
#include "lockstep/error.h"

namespace lockstep::data {

struct ImageDecoder::Decoders {
  JpegDecoder jpeg;
  PngDecoder png;
};

ImageDecoder::ImageDecoder() : decoders_(std::make_unique<Decoders>()) {}
ImageDecoder::~ImageDecoder() = default;

bool ImageDecoder::open(std::span<const std::uint8_t> bytes) {
  const auto bad = [&](std::string why) {
    reason_ = std::move(why);
    return false;
  };
  if (bytes.empty()) return bad("it is empty (0 bytes)");
  if (bytes.size() > kMaxImageBytes)
    return bad(fmt::format("its {} bytes exceed the limit of {}", bytes.size(), kMaxImageBytes));
  format_ = format_of(bytes);
  if (format_ == ImageFormat::png) return decoders_->png.open(bytes) || bad(decoders_->png.reason());
  if (bytes[0] != 0xff || (bytes.size() > 1 && bytes[1] != 0xd8)) return bad("it is neither a JPEG nor a PNG file");
  return decoders_->jpeg.open(bytes) || bad(decoders_->jpeg.reason());
}

int ImageDecoder::width() const {
  return format_ == ImageFormat::png ? decoders_->png.width() : decoders_->jpeg.width();
}
int ImageDecoder::height() const {
  return format_ == ImageFormat::png ? decoders_->png.height() : decoders_->jpeg.height();
}
bool ImageDecoder::is_grey() const {
  return format_ == ImageFormat::png ? decoders_->png.is_grey() : decoders_->jpeg.is_grey();
}

bool ImageDecoder::start(int eighths, int channels) {
  channels_ = channels;
  eighths_ = format_ == ImageFormat::png ? 8 : eighths;
  if (format_ == ImageFormat::png || decoders_->jpeg.start(eighths, channels)) return true;
  reason_ = decoders_->jpeg.reason();
  return false;
}

int ImageDecoder::decoded_width() const {
  return format_ == ImageFormat::png ? decoders_->png.width() : decoders_->jpeg.decoded_width();
}
int ImageDecoder::decoded_height() const {
  return format_ == ImageFormat::png ? decoders_->png.height() : decoders_->jpeg.decoded_height();
}

bool ImageDecoder::read_pixels(std::span<std::uint8_t> pixels) {
  const bool png = format_ == ImageFormat::png;
  if (png ? decoders_->png.read_pixels(channels_, pixels) : decoders_->jpeg.read_pixels(pixels)) return true;
  reason_ = png ? decoders_->png.reason() : decoders_->jpeg.reason();
  return false;
}

const char* name_of(ImageFormat format) { return format == ImageFormat::png ? "PNG" : "JPEG"; }

ImageFormat format_of(std::span<const std::uint8_t> bytes) {
  return is_png(bytes) ? ImageFormat::png : ImageFormat::jpeg;
}

}  // namespace lockstep::data
