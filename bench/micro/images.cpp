// The steps that turn the JPEG bytes of one image into the input of a network: 500x375 pixels, quality 90, random crops
// resized to 224x224. Without an argument, the images have noise on them, so that their files have about as many bytes
// as photographs; with one, they are the JPEG files of that folder. Compare the whole with its floor: parsing the
// entropy-coded bytes down to the last row that is needed, which no decoder can avoid. Items per second are images on
// one core.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "bench/micro/support.h"
#include "data/image_decoder.h"
#include "data/shaped_decoder.h"
#include "kernels/cpu/base/simd.h"
#include "test/data/jpeg_files.h"

namespace lockstep::bench {
namespace {

constexpr int kHeight = 375, kWidth = 500, kSize = 224;
constexpr data::ImageShaping kShaping{.image_size = kSize, .resized_crop = true, .seed = 1};

std::vector<std::string>& images() {
  static std::vector<std::string> all;
  return all;
}

void make_images() {
  std::mt19937 random(1);
  for (int i = 0; i < 64; ++i) {
    std::vector<std::uint8_t> pixels = data::smooth_pixels(kHeight, kWidth, 3, i);
    for (auto& v : pixels) v = static_cast<std::uint8_t>(v * 3 / 4 + random() % 24);
    images().push_back(data::encode_jpeg(pixels, kHeight, kWidth, {.quality = 90}));
  }
}

void read_images(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    images().emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
}

std::span<const std::uint8_t> image(std::size_t i) {
  const std::string& jpeg = images()[i % images().size()];
  return {reinterpret_cast<const std::uint8_t*>(jpeg.data()), jpeg.size()};
}

data::Box box_of_image(std::size_t i, int height, int width) {
  return data::box_of(kShaping, height, width, static_cast<std::uint32_t>(i), 0);
}

enum class Part { whole, crop, floor };

void decode(benchmark::State& state, Part part) {
  data::JpegDecoder decoder;
  std::vector<std::uint8_t> pixels;
  each_image(state, [&](std::size_t i) {
    require(decoder.open(image(i)) && decoder.start(8), ErrorCode::data_damaged, "{}", decoder.reason());
    data::PixelArea needed = data::area_of_box(box_of_image(i, decoder.height(), decoder.width()), true,
                                               decoder.height(), decoder.width(), 1);
    // One pixel of the last row: almost nothing is transformed or converted.
    if (part == Part::floor) needed = {.left = 0, .top = needed.top + needed.height - 1, .width = 1, .height = 1};
    if (part != Part::whole)
      require(decoder.crop(needed, data::RowsBelow::ignored), ErrorCode::data_damaged, "{}", decoder.reason());
    const data::PixelArea area = decoder.decoded_area();
    pixels.resize(std::size_t{3} * area.width * area.height);
    require(decoder.read_pixels(pixels), ErrorCode::data_damaged, "{}", decoder.reason());
    benchmark::DoNotOptimize(pixels.data());
  });
}

void resize(benchmark::State& state, cpu::Isa isa) {
  cpu::limit_isa(isa);
  const std::vector<std::uint8_t> pixels = data::smooth_pixels(kHeight, kWidth, 3, 1);
  std::vector<std::uint8_t> out(std::size_t{3} * kSize * kSize);
  data::Resizer resizer;
  each_image(state, [&](std::size_t i) {
    const data::PixelArea all{.width = kWidth, .height = kHeight};
    data::resize_box(resizer, {pixels.data(), kHeight, kWidth, 3, std::ptrdiff_t{3} * kWidth}, all,
                     box_of_image(i, kHeight, kWidth), true, kSize, out);
    benchmark::DoNotOptimize(out.data());
  });
  cpu::limit_isa(cpu::Isa::avx512);
}

void sample(benchmark::State& state, cpu::Isa isa) {
  cpu::limit_isa(isa);
  std::vector<std::uint8_t> out(std::size_t{3} * kSize * kSize);
  data::ShapedDecoder decoder;
  each_image(state, [&](std::size_t i) {
    require(decoder.open(image(i)) && decoder.read_shaped(kShaping, static_cast<std::uint32_t>(i), 0, 3, out),
            ErrorCode::data_damaged, "{}", decoder.reason());
    benchmark::DoNotOptimize(out.data());
  });
  cpu::limit_isa(cpu::Isa::avx512);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  if (argc > 1 && argv[1][0] != '-') {
    read_images(argv[1]);
    std::rotate(argv + 1, argv + 2, argv + argc--);
  }
  if (images().empty()) make_images();
  std::size_t n_bytes = 0;
  for (const std::string& jpeg : images()) n_bytes += jpeg.size();
  benchmark::AddCustomContext(
      "images", std::to_string(images().size()) + " of " + std::to_string(n_bytes / images().size()) + " bytes");
  add("images/decode/whole", [](benchmark::State& s) { decode(s, Part::whole); });
  add("images/decode/crop", [](benchmark::State& s) { decode(s, Part::crop); });
  add("images/decode/floor", [](benchmark::State& s) { decode(s, Part::floor); });
  for (const auto& [name, isa] :
       {std::pair{"avx512", cpu::Isa::avx512}, {"avx2", cpu::Isa::avx2}, {"baseline", cpu::Isa::baseline}}) {
    add(std::string("images/resize/") + name, [isa = isa](benchmark::State& s) { resize(s, isa); });
    add(std::string("images/sample/") + name, [isa = isa](benchmark::State& s) { sample(s, isa); });
  }
  return run_all(argc, argv);
}
