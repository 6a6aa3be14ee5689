// Decoded images of several sizes: what a batch contains of them, for any number of ranks and readers, and files whose
// index is damaged.
#include <gtest/gtest.h>

#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <map>

#include "data/image_set.h"
#include "data/image_shape.h"
#include "data/loader.h"
#include "lockstep/ops/image_input.h"
#include "test/data/files.h"
#include "test/support/device.h"

namespace lockstep::data {
namespace {

constexpr int kSamples = 23, kChannels = 3, kClasses = 7;

int height_of(std::int64_t sample) { return 20 + static_cast<int>(sample * 7 % 13); }
int width_of(std::int64_t sample) { return 20 + static_cast<int>(sample * 5 % 17); }
std::size_t bytes_of(std::int64_t sample) {
  return static_cast<std::size_t>(height_of(sample)) * static_cast<std::size_t>(width_of(sample)) * kChannels;
}

void write_set(const std::string& path, const Placement& placement = kDefaultPlacement) {
  std::uint64_t n_bytes = 0;
  for (std::int64_t i = 0; i < kSamples; ++i) n_bytes += bytes_of(i);
  ImageFileWriter writer(path, true, kSamples, n_bytes, placement);
  for (std::int64_t i = 0; i < kSamples; ++i)
    writer.append_pixels(test_image(i, bytes_of(i)), height_of(i), width_of(i), test_label(i, kClasses));
  ImageSetInfo info;
  info.split = "train";
  info.classes = kClasses;
  for (int k = 0; k < kClasses; ++k) info.class_names.push_back("class " + std::to_string(k));
  info.mean.assign(kChannels, 0.0f);
  info.stddev.assign(kChannels, 1.0f / 255);
  writer.finish(info, "test");
}

class Regions : public testing::Test {
 protected:
  Regions() { write_set(path_); }
  TemporaryFolder folder_;
  std::string path_ = folder_ / "set.h5";
};

const ImageShaping kCrops{.image_size = 12, .resized_crop = true, .seed = 5};
const ImageShaping kCentre{.image_size = 12, .resized_crop = false, .seed = 5};

LoaderOptions options_for(std::int64_t global_batch, int n_ranks = 1, int rank = 0) {
  LoaderOptions options;
  options.global_batch = global_batch;
  options.first_shard = rank;
  options.total_shards = n_ranks;
  options.capacity = (global_batch + n_ranks - 1) / n_ranks;
  options.seed = 5;
  return options;
}

template <typename T>
T number(const Batch& batch, std::size_t field, std::size_t i) {
  T value;
  std::memcpy(&value, batch.fields[field].data() + i * sizeof(T), sizeof(T));
  return value;
}

struct Sample {
  std::uint32_t epoch = 0;
  ImageRegion region;
  std::vector<std::byte> pixels;
  bool operator==(const Sample&) const = default;
};

/// Collects the samples of a batch by sample number and epoch.
void collect(const Batch& batch, std::uint32_t epoch, std::map<std::pair<std::uint32_t, std::uint32_t>, Sample>& out) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(batch.n_samples); ++i) {
    const auto id = number<std::uint32_t>(batch, 2, i);
    const auto region = number<ImageRegion>(batch, 3, i);
    const std::size_t begin = static_cast<std::size_t>(number<std::int32_t>(batch, 4, i)) * kPackedUnitBytes;
    const auto n_bytes = static_cast<std::size_t>(region.n_pixels() * kChannels);
    ASSERT_LE(begin + n_bytes, batch.packed_bytes);
    EXPECT_EQ(number<std::int32_t>(batch, 1, i), test_label(id, kClasses));
    const auto pixels = batch.fields[0].subspan(begin, n_bytes);
    EXPECT_TRUE(out.emplace(std::pair{epoch, id}, Sample{epoch, region, {pixels.begin(), pixels.end()}}).second);
  }
}

TEST_F(Regions, HaveTheSameLayoutWithoutTheUserBlock) { expect_same_layout_from_child(path_, open_image_file); }

TEST_F(Regions, ABatchHasTheRegionsOfItsCrops) {
  for (const Placement& placement : {kDefaultPlacement, Placement{.alignment_bytes = 0, .chunk_bytes = 5000}})
    for (const ImageShaping& shaping : {kCrops, kCentre}) {
      write_set(path_, placement);
      const std::shared_ptr<const ImageSet> set = open_image_set(path_, 2, 0, shaping);
      ASSERT_EQ(set->info().n_samples, kSamples - 2);
      EXPECT_EQ(set->info().height, 12);
      double sum = 0;
      for (std::int64_t id = 2; id < kSamples; ++id) sum += static_cast<double>(bytes_of(id));
      EXPECT_DOUBLE_EQ(set->stored_bytes(), sum / (kSamples - 2));
      EXPECT_EQ(set->faster_reading(), std::vector<std::string>{"a smaller --short-side"});
      double packed = 0, others = 0;
      for (std::int64_t i = 0; i < kSamples - 2; ++i)
        packed += static_cast<double>(Field::packed_bytes(set->packed_bytes(i, 0)));
      for (const Field& field : set->fields())
        if (field.packing != Packing::packed) others += static_cast<double>(field.size_bytes());
      EXPECT_DOUBLE_EQ(mean_sample_bytes(*set), packed / (kSamples - 2) + others);
      EXPECT_LT(mean_sample_bytes(*set), static_cast<double>(sample_bytes(set->fields())));
      EXPECT_DOUBLE_EQ(set->reader_work().read_bytes, mean_sample_bytes(*set));
      LoaderOptions options = options_for(7);
      options.last_step = 6;
      Loader loader(set, options);
      for (std::uint32_t step = 0; step < 6; ++step) {
        std::map<std::pair<std::uint32_t, std::uint32_t>, Sample> samples;
        collect(loader.next(), step / 3, samples);
        ASSERT_EQ(samples.size(), 7u);
        for (const auto& [key, sample] : samples) {
          const std::int64_t id = key.second;
          const StoredRegion expected = region_of(shaping, height_of(id), width_of(id), key.second, sample.epoch);
          ASSERT_EQ(sample.region, expected.region) << "sample " << id;
          const std::vector<std::uint8_t> image = test_image(id, bytes_of(id));
          std::size_t at = 0;
          for (int y = 0; y < sample.region.rows.n; ++y)
            for (int x = 0; x < sample.region.columns.n * kChannels; ++x, ++at)
              ASSERT_EQ(
                  std::to_integer<int>(sample.pixels[at]),
                  image[static_cast<std::size_t>(((expected.top + y) * width_of(id) + expected.left) * kChannels + x)])
                  << "sample " << id << ", row " << y << ", byte " << x;
        }
      }
    }
}

TEST_F(Regions, AreTheSameOnAnyNumberOfRanksAndReaders) {
  const std::shared_ptr<const ImageSet> set = open_image_set(path_, 0, 0, kCrops);
  std::map<std::pair<std::uint32_t, std::uint32_t>, Sample> first;
  for (const auto& [n_ranks, readers] : {std::pair{1, 1}, {1, 5}, {2, 3}, {3, 1}, {11, 2}}) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, Sample> all;
    for (int rank = 0; rank < n_ranks; ++rank) {
      LoaderOptions options = options_for(11, n_ranks, rank);
      options.readers = readers;
      Loader loader(set, options);
      for (std::uint32_t step = 0; step < 6; ++step) collect(loader.next(), step / 2, all);
    }
    EXPECT_EQ(all.size(), 66u);
    if (first.empty()) first = all;
    EXPECT_TRUE(all == first) << n_ranks << " ranks, " << readers << " readers";
  }
}

/// On every backend, the op computes the same bytes as the host does for JPEG files.
TEST_F(Regions, TheOpResizesThemAsTheHostDoes) {
  for (const ImageShaping& shaping : {kCrops, kCentre}) {
    const std::shared_ptr<const ImageSet> set = open_image_set(path_, 0, 0, shaping);
    const std::vector<Field> fields = set->fields();
    Loader loader(set, options_for(kSamples));
    const data::Batch& batch = loader.next();
    ImageInputDescription d{.x = {kSamples, 12, 12, kChannels},
                            .mean = set->info().mean,
                            .stddev = set->info().stddev,
                            .regions = {.max_height = static_cast<int>(fields[0].shape[0]),
                                        .max_width = static_cast<int>(fields[0].shape[1]),
                                        .place_bytes = kPackedUnitBytes}};
    for (auto& [name, backend] : test::tested_backends()) {
      test::Device device(*backend);
      const auto upload = [&](std::size_t i) {
        return device.upload(std::vector<std::byte>(batch.fields[i].begin(), batch.fields[i].end()));
      };
      const auto op = backend->make(d);
      const auto n_values = static_cast<std::size_t>(d.x.n_elements());
      auto* y = device.garbage<float>(n_values);
      op->forward({.images = reinterpret_cast<const std::uint8_t*>(upload(0)),
                   .regions = reinterpret_cast<const ImageRegion*>(upload(3)),
                   .places = reinterpret_cast<const std::int32_t*>(upload(4)),
                   .sample_ids = reinterpret_cast<const std::uint32_t*>(upload(2)),
                   .scalars = device.upload(std::vector<StepScalars>{StepScalars{}}),
                   .y = y},
                  device.op_memory(op->memory_requirements()), device.stream());
      const std::vector<float> values = device.download(y, n_values);
      for (std::size_t i = 0; i < kSamples; ++i) {
        std::vector<std::uint8_t> expected(set->info().image_bytes());
        std::int32_t label = 0;
        set->read_image(number<std::int32_t>(batch, 2, i), 0, expected, label);
        for (std::size_t k = 0; k < expected.size(); ++k)
          ASSERT_EQ(std::lround(values[i * expected.size() + k]), expected[k]) << name << ", sample " << i;
      }
    }
  }
}

TEST_F(Regions, NoneIsLargerThanTheMemoryThatIsPlanned) {
  for (const ImageShaping& shaping : {kCrops, kCentre}) {
    const auto set = open_image_set(path_, 0, 0, shaping);
    const std::vector<Field> fields = set->fields();
    std::size_t largest = 0;
    for (std::int64_t sample = 0; sample < kSamples; ++sample)
      for (std::uint32_t epoch = 0; epoch < 300; ++epoch) {
        largest = std::max(largest, set->packed_bytes(sample, epoch));
        const ImageRegion region =
            region_of(shaping, height_of(sample), width_of(sample), static_cast<std::uint32_t>(sample), epoch).region;
        ASSERT_LE(region.rows.n, fields[0].shape[0]);
        ASSERT_LE(region.columns.n, fields[0].shape[1]);
      }
    EXPECT_LE(largest, fields[0].max_bytes);
    EXPECT_GT(static_cast<double>(largest), 0.9 * static_cast<double>(fields[0].max_bytes));
    EXPECT_EQ(Loader::buffer_bytes(fields, 10, 3),
              5 * 10 * (Field::packed_bytes(fields[0].max_bytes) + 4 + 4 + 40 + 4));
  }
}

TEST_F(Regions, PaddingHasNoPixels) {
  const std::shared_ptr<const ImageSet> set = open_image_set(path_, 0, 0, kCentre);
  LoaderOptions options = options_for(20);
  options.drop_last = false;
  options.shuffle = false;
  Loader loader(set, options);
  loader.next();
  const Batch& last = loader.next();
  ASSERT_EQ(last.n_samples, 3);
  for (std::size_t i = 3; i < 20; ++i) {
    EXPECT_EQ(number<ImageRegion>(last, 3, i), ImageRegion{});
    EXPECT_EQ(number<std::int32_t>(last, 4, i), 0);
    EXPECT_EQ(number<std::int32_t>(last, 1, i), -1);
  }
}

TEST_F(Regions, NeedASize) {
  EXPECT_ERROR(ErrorCode::model_mismatch, "several sizes: set data.image_size", open_image_set(path_));
}

/// If all images already have the requested size, they are not resized, and their batches are like those of other sets.
TEST_F(Regions, OfOneSizeCanBeReadAsStored) {
  ImageFileWriter writer(path_, true, 2, std::uint64_t{2} * 6 * 5 * 3);
  for (std::int64_t i = 0; i < 2; ++i) writer.append_pixels(test_image(i, 6 * 5 * 3), 6, 5, 0);
  ImageSetInfo info;
  info.classes = 1;
  info.class_names = {"all"};
  info.mean = info.stddev = {0.5f, 0.5f, 0.5f};
  writer.finish(info, "test");
  const auto set = open_image_set(path_);
  EXPECT_EQ(set->info().height, 6);
  EXPECT_EQ(set->fields().size(), 3u);
  std::vector<std::uint8_t> image(6 * 5 * 3);
  std::int32_t label = 1;
  set->read_image(1, 0, image, label);
  EXPECT_EQ(image, test_image(1, image.size()));
}

/// A file that another program wrote, whose index does not fit its images.
TEST_F(Regions, ADamagedIndexIsRefused) {
  const ImageFile layout = open_image_file(InputFile(path_));
  const std::string whole = read_all(path_);
  const auto with = [&](std::uint64_t offset, auto value) {
    write_all(path_, whole);
    overwrite(path_, offset, std::as_bytes(std::span(&value, 1)));
    EXPECT_ERROR(ErrorCode::data_damaged, "damaged", open_image_set(path_, 0, 0, kCrops));
    remove_user_block(path_);
  };
  const std::uint64_t offsets = layout.encoded->offsets.offset, sizes = layout.encoded->sizes.offset;
  const char* const remedy = "copy or import the data set again";
  const auto expect_refused = [&](const char* what) {
    EXPECT_ERROR(ErrorCode::data_format, what, open_image_set(path_, 0, 0, kCrops));
    EXPECT_ERROR(ErrorCode::data_format, remedy, open_image_set(path_, 0, 0, kCrops));
  };
  with(sizes + 4 * 8, std::int32_t{height_of(4) + 1});
  expect_refused("sample 4 has");
  with(sizes + 4 * 8 + 4, std::int32_t{-1});
  expect_refused("sample 4 has a height of");
  with(sizes + 4 * 8 + 4, std::int32_t{0x7fffffff});
  expect_refused("sample 4 has a height of");
  with(offsets + 3 * 8, std::uint64_t{1} << 62);
  expect_refused("sample 2 is stored from byte");
  with(offsets + 3 * 8, std::uint64_t{1});
  expect_refused("sample 2 is stored from byte");
  write_all(path_, whole);
  remove_user_block(path_);
  EXPECT_EQ(open_image_set(path_, 0, 0, kCrops)->info().n_samples, kSamples);
}

TEST_F(Regions, AFileThatShrinksIsAnError) {
  const auto set = open_image_set(path_, 0, 0, kCentre);
  const ImageFile layout = open_image_file(InputFile(path_));
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(layout.images.offsets[0] + 4000)), 0);
  std::vector<std::uint8_t> image(set->info().image_bytes());
  std::int32_t label = 0;
  EXPECT_ERROR(ErrorCode::data_damaged, "sample 20", set->read_image(20, 0, image, label));
}

}  // namespace
}  // namespace lockstep::data
