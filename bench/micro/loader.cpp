// The loader alone: batches of 32, shuffled, one reader thread. With a file (argument 1): its images as stored and
// randomly cropped. Otherwise the committed sample, and generated JPEG images of 64x64 and, for 224x224, of 500x375.
// Items per second are samples.
#include "data/loader.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "bench/micro/support.h"
#include "data/image_file.h"
#include "test/data/jpeg_files.h"

namespace lockstep::bench {
namespace {

void measure_loader(benchmark::State& state, const std::string& path, const data::ImageShaping& shaping) {
  const std::shared_ptr<const data::ImageSet> set = data::open_image_set(path, 0, 0, shaping);
  data::Loader loader(set, {.global_batch = kBatch, .capacity = kBatch, .seed = 1});
  measure(
      state, [&] { benchmark::DoNotOptimize(loader.next().n_samples); }, 0,
      static_cast<double>(kBatch) * static_cast<double>(set->info().image_bytes()));
  state.SetItemsProcessed(state.iterations() * kBatch);
}

/// A set of JPEG images with noise on them, so that a file has about as many bytes as a photograph; removed at exit.
class JpegSample {
 public:
  JpegSample(int height, int width)
      : path_(std::filesystem::temp_directory_path() /
              ("lockstep-loader-" + std::to_string(::getpid()) + "-" + std::to_string(width) + ".h5")) {
    std::vector<std::string> images;
    std::uint64_t n_bytes = 0;
    std::uint32_t random = 1;
    for (int i = 0; i < kImages; ++i) {
      std::vector<std::uint8_t> pixels = data::smooth_pixels(height, width, 3, i);
      for (auto& v : pixels) v = static_cast<std::uint8_t>(v / 2 + ((random = random * 1664525u + 1013904223u) >> 26));
      images.push_back(data::encode_jpeg(pixels, height, width, {.quality = 75}));
      n_bytes += images.back().size();
    }
    data::ImageFileWriter writer(path_, true, kImages, n_bytes);
    for (const std::string& image : images)
      writer.append_encoded({reinterpret_cast<const std::uint8_t*>(image.data()), image.size()}, height, width, 0);
    data::ImageSetInfo info;
    info.split = "train";
    info.classes = 1;
    info.class_names = {"noise"};
    info.mean = info.stddev = {0.5f, 0.5f, 0.5f};
    writer.finish(info, "a benchmark");
  }
  ~JpegSample() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static constexpr int kImages = 128;
  std::string path_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  const data::ImageShaping as_stored, cropped{.resized_crop = true, .seed = 1};
  const auto measured = [](const std::string& name, const std::string& path, const data::ImageShaping& shaping) {
    add(name, [=](benchmark::State& s) { measure_loader(s, path, shaping); });
  };
  if (argc > 1 && argv[1][0] != '-') {
    const std::string path = argv[1];
    std::rotate(argv + 1, argv + 2, argv + argc);
    measured("loader/file", path, as_stored);
    measured("loader/file/resized_crop", path, cropped);
    return run_all(argc - 1, argv);
  }
  const JpegSample small(64, 64), large(375, 500);
  measured("loader/decoded/32x32", "data/samples/cifar10_train.h5", as_stored);
  measured("loader/jpeg/64x64", small.path(), as_stored);
  measured("loader/jpeg/64x64/resized_crop", small.path(), cropped);
  measured("loader/jpeg/500x375/centre_224", large.path(), {.image_size = 224});
  measured("loader/jpeg/500x375/resized_crop_224", large.path(), {.image_size = 224, .resized_crop = true, .seed = 1});
  return run_all(argc, argv);
}
