// also: Corpus.png
// Fuzz target: PNG images. Input: a first byte, which gives the channels to decode to; then the file, in which the
// checksums of chunks are corrected. After each image a good one is decoded, since the decoder must not retain anything
// of the first.
#include "data/image_decoder.h"

#include "test/data/png_files.h"
#include "test/fuzz/fuzz.h"

namespace {

using namespace lockstep;

/// Larger images are bounded too (kMaxImagePixels), but take too long for a fuzzer.
constexpr std::int64_t kMaxPixels = 1 << 20;

bool decode(data::PngDecoder& decoder, std::span<const std::uint8_t> bytes, int channels) {
  if (!decoder.open(bytes)) return false;
  if (std::int64_t{decoder.width()} * decoder.height() > kMaxPixels) return false;
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(decoder.width()) * decoder.height() *
                                   static_cast<std::size_t>(channels));
  return decoder.read_pixels(channels, pixels);
}

}  // namespace

FUZZ_TARGET(png) {
  static const std::string good = data::small_png(9, 7, 1);
  static data::PngDecoder decoder;
  if (size == 0) return 0;
  fuzz::no_crash([&] {
    std::vector<std::uint8_t> png(data + 1, data + size);
    data::correct_checksums(png);
    decode(decoder, png, data[0] % 2 == 0 ? 3 : 1);
    if (!decode(decoder, {reinterpret_cast<const std::uint8_t*>(good.data()), good.size()}, 3))
      fail(ErrorCode::internal, "a good image is not decoded after a bad one: {}", decoder.reason());
  });
  return 0;
}
