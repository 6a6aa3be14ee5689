// The loader alone, with batches of 32, shuffled, and one or two reader threads. With a file as argument 1: its images
// as stored and randomly cropped. Otherwise: the committed sample; generated JPEG images of 64x64 and, for 224x224, of
// 500x375; and decoded images of 341x256, the size of a 4:3 photograph imported with --short-side 256, from which
// regions are read for outputs of 224x224. The decoded images are 268 MB: they are in the page cache, but far exceed
// the caches of a processor. Items per second are samples; where the name has process_time, the column CPU counts all
// threads. The least that a loader must move is the bytes of a batch, read once and written once.
#include "data/loader.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "bench/micro/support.h"
#include "data/image_file.h"
#include "test/data/jpeg_files.h"

namespace lockstep::bench {
namespace {

void measure_loader(benchmark::State& state, const std::string& path, const data::ImageShaping& shaping, int readers) {
  const std::shared_ptr<const data::ImageSet> set = data::open_image_set(path, 0, 0, shaping);
  const data::Field image = set->fields().front();
  double image_bytes = static_cast<double>(image.size_bytes());
  if (image.packing == data::Packing::packed) {
    image_bytes = 0;
    for (std::int64_t i = 0; i < set->info().n_samples; ++i)
      image_bytes += static_cast<double>(set->packed_bytes(i, 0)) / static_cast<double>(set->info().n_samples);
  }
  data::Loader loader(set, {.global_batch = kBatch, .capacity = kBatch, .seed = 1, .readers = readers});
  measure(state, 0, 2 * kBatch * image_bytes, [&] { benchmark::DoNotOptimize(loader.next().n_samples); });
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.counters["kB of a sample"] = image_bytes / 1000;
}

/// A data set of several sizes, which is removed at exit. `write` appends the images.
class SampleFile {
 public:
  template <typename Write>
  SampleFile(const std::string& name, int n_images, std::uint64_t n_bytes, const Write& write)
      : path_(std::filesystem::temp_directory_path() /
              ("lockstep-loader-" + std::to_string(::getpid()) + "-" + name + ".h5")) {
    data::ImageFileWriter writer(path_, true, n_images, n_bytes);
    write(writer);
    data::ImageSetInfo info;
    info.split = "train";
    info.classes = 1;
    info.class_names = {"noise"};
    info.mean = info.stddev = {0.5f, 0.5f, 0.5f};
    writer.finish(info, "a benchmark");
  }
  ~SampleFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// JPEG images with noise on them, so that their files have about as many bytes as photographs.
SampleFile jpeg_sample(int height, int width) {
  constexpr int kImages = 128;
  std::vector<std::string> images;
  std::uint64_t n_bytes = 0;
  std::uint32_t random = 1;
  for (int i = 0; i < kImages; ++i) {
    std::vector<std::uint8_t> pixels = data::smooth_pixels(height, width, 3, i);
    for (auto& v : pixels) v = static_cast<std::uint8_t>(v / 2 + ((random = random * 1664525u + 1013904223u) >> 26));
    images.push_back(data::encode_jpeg(pixels, height, width, {.quality = 75}));
    n_bytes += images.back().size();
  }
  return SampleFile(std::to_string(width), kImages, n_bytes, [&](data::ImageFileWriter& writer) {
    for (const std::string& image : images)
      writer.append_encoded({reinterpret_cast<const std::uint8_t*>(image.data()), image.size()}, height, width, 0);
  });
}

SampleFile pixel_sample(int height, int width) {
  constexpr int kImages = 1024;
  const std::vector<std::uint8_t> pixels = data::smooth_pixels(height, width, 3, 1);
  return SampleFile("pixels", kImages, kImages * pixels.size(), [&](data::ImageFileWriter& writer) {
    for (int i = 0; i < kImages; ++i) writer.append_pixels(pixels, height, width, 0);
  });
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;         // NOLINT
  using namespace lockstep::bench;  // NOLINT
  const data::ImageShaping as_stored, cropped{.resized_crop = true, .seed = 1};
  const auto measured = [](const std::string& name, const std::string& path, const data::ImageShaping& shaping,
                           int readers = 1) {
    return add(name, [=](benchmark::State& s) { measure_loader(s, path, shaping, readers); });
  };
  if (argc > 1 && argv[1][0] != '-') {
    const std::string path = argv[1];
    // Images of several sizes, or images that are not square, cannot be read as stored.
    const data::ImageSetInfo info = data::open_image_file(data::InputFile(path)).info;
    const int size = info.height == 0 || info.height != info.width ? 224 : 0;
    std::rotate(argv + 1, argv + 2, argv + argc);
    measured("loader/file", path, {.image_size = size})->MeasureProcessCPUTime();
    measured("loader/file/resized_crop", path, {.image_size = size, .resized_crop = true, .seed = 1})
        ->MeasureProcessCPUTime();
    return run_all(argc - 1, argv);
  }
  const SampleFile small = jpeg_sample(64, 64), large = jpeg_sample(375, 500), pixels = pixel_sample(256, 341);
  measured("loader/decoded/32x32", "data/samples/cifar10_train.h5", as_stored);
  measured("loader/jpeg/64x64", small.path(), as_stored);
  measured("loader/jpeg/64x64/resized_crop", small.path(), cropped);
  measured("loader/jpeg/500x375/centre_224", large.path(), {.image_size = 224});
  const data::ImageShaping crops_of_224{.image_size = 224, .resized_crop = true, .seed = 1};
  measured("loader/jpeg/500x375/resized_crop_224", large.path(), crops_of_224)->MeasureProcessCPUTime();
  measured("loader/jpeg/500x375/resized_crop_224/two_readers", large.path(), crops_of_224, 2)->MeasureProcessCPUTime();
  measured("loader/pixels/341x256/centre_224", pixels.path(), {.image_size = 224})->MeasureProcessCPUTime();
  measured("loader/pixels/341x256/centre_256", pixels.path(), {.image_size = 256, .resize = 256})
      ->MeasureProcessCPUTime();
  measured("loader/pixels/341x256/resized_crop_224", pixels.path(), crops_of_224)->MeasureProcessCPUTime();
  measured("loader/pixels/341x256/resized_crop_224/two_readers", pixels.path(), crops_of_224, 2)
      ->MeasureProcessCPUTime();
  return run_all(argc, argv);
}
