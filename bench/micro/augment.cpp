// What readers do with the bytes of a training image after the crop: each operation of TrivialAugmentWide with a
// strength in the middle of its range, TrivialAugmentWide with its random draws, and ColorJitter. Items per second are
// images on one core.
#include "data/augment.h"

#include "bench/micro/support.h"
#include "test/data/jpeg_files.h"

namespace lockstep::bench {
namespace {

/// Calls work(i, image) with a copy of one image, since a reader's buffer has a new image each time, too.
template <typename Work>
void add_augmentation(const std::string& name, int size, const Work& work) {
  add(name + "/" + std::to_string(size), [=](benchmark::State& state) {
    const std::vector<std::uint8_t> original = data::smooth_pixels(size, size, 3, 1);
    std::vector<std::uint8_t> bytes, scratch;
    each_image(state, [&](std::size_t i) {
      bytes = original;
      work(static_cast<std::uint32_t>(i),
           data::Pixels{.bytes = bytes, .height = size, .width = size, .channels = 3, .scratch = scratch});
    });
  })->Unit(benchmark::kMicrosecond);
}

constexpr const char* kNames[] = {"identity",  "shear_x",    "shear_y",      "translate_x", "translate_y",
                                  "rotate",    "brightness", "saturation",   "contrast",    "sharpness",
                                  "posterize", "solarize",   "autocontrast", "equalize"};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  for (int operation = 0; operation < data::kTrivialChanges; ++operation)
    add_augmentation(kNames[operation], 224, [operation](std::uint32_t, const data::Pixels& image) {
      const data::DrawnChange change = data::trivial_change(operation, 15, false);
      data::apply(change.change, change.strength, image);
    });
  const data::AugmentOptions trivial{.trivial_augment = true, .seed = 1};
  const data::AugmentOptions jitter{.colours = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
                                    .seed = 1};
  for (const int size : {176, 224})
    for (const auto& [name, options] : {std::pair{"trivial_augment", trivial}, {"color_jitter", jitter}})
      add_augmentation(name, size, [options = options](std::uint32_t sample, const data::Pixels& image) {
        data::augment(options, sample, 0, image);
      });
  return run_all(argc, argv);
}
