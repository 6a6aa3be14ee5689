// What readers do with the bytes of a training image after the crop: each operation of TrivialAugmentWide with a
// strength in the middle of its range, TrivialAugmentWide with its random draws, and ColorJitter. Items per second are
// images on one core.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "data/augment.h"
#include "test/data/jpeg_files.h"

namespace lockstep::bench {
namespace {

struct Image {
  explicit Image(int size) : bytes(data::smooth_pixels(size, size, 3, 1)), size(size) {}
  data::Pixels pixels() { return {.bytes = bytes, .height = size, .width = size, .channels = 3, .scratch = scratch}; }
  std::vector<std::uint8_t> bytes, scratch;
  int size;
};

template <typename Work>
void each_image(benchmark::State& state, int size, const Work& work) {
  Image image(size);
  const std::vector<std::uint8_t> original = image.bytes;
  std::uint32_t sample = 0;
  for (auto _ : state) {
    image.bytes = original;  // a reader's buffer has a new image each time, too
    work(sample++, image.pixels());
  }
  state.SetItemsProcessed(state.iterations());
}

void add(const std::string& name, const data::AugmentOptions& options, int size) {
  benchmark::RegisterBenchmark((name + "/" + std::to_string(size)).c_str(), [=](benchmark::State& state) {
    each_image(state, size,
               [&](std::uint32_t sample, const data::Pixels& image) { data::augment(options, sample, 0, image); });
  })->Unit(benchmark::kMicrosecond);
}

constexpr const char* kNames[] = {"identity",  "shear_x",    "shear_y",      "translate_x", "translate_y",
                                  "rotate",    "brightness", "saturation",   "contrast",    "sharpness",
                                  "posterize", "solarize",   "autocontrast", "equalize"};

void add_all() {
  for (int operation = 0; operation < data::kTrivialChanges; ++operation)
    benchmark::RegisterBenchmark((std::string(kNames[operation]) + "/224").c_str(), [=](benchmark::State& state) {
      const data::DrawnChange change = data::trivial_change(operation, 15, false);
      each_image(state, 224,
                 [&](std::uint32_t, const data::Pixels& image) { data::apply(change.change, change.strength, image); });
    })->Unit(benchmark::kMicrosecond);
  for (const int size : {176, 224}) {
    add("trivial_augment", {.trivial_augment = true, .seed = 1}, size);
    add("color_jitter", {.colours = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}, .seed = 1},
        size);
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::add_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
