// also: Corpus.jpeg
// Fuzz target: JPEG images. Input: a first byte, which gives the size to decode to and the part of the image; then the
// file. After each image a good one is decoded, since the decoder must not retain anything of the first.
#include "data/image_decoder.h"

#include "test/data/jpeg_files.h"
#include "test/fuzz/fuzz.h"

namespace {

using namespace lockstep;

/// Larger images are bounded too (kMaxImagePixels), but take too long for a fuzzer.
constexpr std::int64_t kMaxPixels = 1 << 20;

/// `place`: 0 for the whole image; other values for a part, in sixteenths.
bool decode(data::JpegDecoder& decoder, std::span<const std::uint8_t> bytes, int eighths, int place) {
  if (!decoder.open(bytes)) return false;
  if (std::int64_t{decoder.width()} * decoder.height() > kMaxPixels) return false;
  if (!decoder.start(eighths)) return false;
  data::PixelArea area = decoder.decoded_area();
  if (place > 0) {
    const data::PixelArea whole = area;
    area.left = whole.width * place / 16;
    area.top = whole.height * (15 - place) / 16;
    area.width = (whole.width - area.left + 1) / 2;
    area.height = (whole.height - area.top + 1) / 2;
    if (!decoder.crop(area, place % 2 == 0 ? data::RowsBelow::ignored : data::RowsBelow::parsed)) return false;
    if (!decoder.decoded_area().contains(area)) fail(ErrorCode::internal, "the part is not decoded");
    area = decoder.decoded_area();
  }
  std::vector<std::uint8_t> rgb(std::size_t{3} * area.width * area.height);
  return decoder.read_pixels(rgb);
}

}  // namespace

FUZZ_TARGET(jpeg) {
  static const std::string good = data::smooth_jpeg(9, 7);
  static data::JpegDecoder decoder;
  if (size == 0) return 0;
  fuzz::no_crash([&] {
    decode(decoder, {data + 1, size - 1}, 1 << data[0] % 4, data[0] / 16);
    if (!decode(decoder, {reinterpret_cast<const std::uint8_t*>(good.data()), good.size()}, 8, 0))
      fail(ErrorCode::internal, "a good image is not decoded after a bad one: {}", decoder.reason());
  });
  return 0;
}
