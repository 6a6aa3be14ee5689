// also: Corpus.jpeg
// Fuzz target: JPEG images. Input: a first byte, the size to decode to; then the file. After each image a good one is
// decoded, since the decoder must not keep anything of the first.
#include "data/jpeg.h"

#include "test/data/jpeg_files.h"
#include "test/fuzz/fuzz.h"

namespace {

using namespace lockstep;

/// Larger images are bounded too (kMaxImagePixels), but take too long for a fuzzer.
constexpr std::int64_t kMaxPixels = 1 << 20;

bool decode(data::JpegDecoder& decoder, std::span<const std::uint8_t> bytes, int eighths) {
  if (!decoder.open(bytes)) return false;
  if (std::int64_t{decoder.width()} * decoder.height() > kMaxPixels) return false;
  if (!decoder.start(eighths)) return false;
  std::vector<std::uint8_t> rgb(std::size_t{3} * decoder.decoded_width() * decoder.decoded_height());
  return decoder.read_pixels(rgb);
}

}  // namespace

FUZZ_TARGET(jpeg) {
  static const std::string good = data::smooth_jpeg(9, 7);
  static data::JpegDecoder decoder;
  if (size == 0) return 0;
  fuzz::no_crash([&] {
    decode(decoder, {data + 1, size - 1}, 1 << data[0] % 4);
    if (!decode(decoder, {reinterpret_cast<const std::uint8_t*>(good.data()), good.size()}, 8))
      fail(ErrorCode::internal, "a good image is not decoded after a bad one: {}", decoder.reason());
  });
  return 0;
}
