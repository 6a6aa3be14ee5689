// The values that `auto` gives train.batch_per_rank and train.accumulate.
#include "train/batch_fit.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "test/train/small_run.h"

namespace lockstep::train {
namespace {

std::unique_ptr<tasks::Task> a_task(const Config& config) {
  return tasks::make_image_classification(config, data::make_synthetic_set(1, 64, 32, 32, 3, 10, "train"), nullptr);
}

/// The batch that fits on the CPU if it had this much memory.
std::int64_t fits(const Config& config, std::size_t memory_bytes, std::int64_t limit = 1 << 20) {
  const auto task = a_task(config);
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  return batch_that_fits(config, *task, 1, *backend, {}, memory_bytes, limit);
}

double planned_bytes(std::int64_t batch) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const Config config = test::small_config(32, batch);
  const auto task = a_task(config);
  return static_cast<double>(StepPlan(config, *task, batch_shape(config, 0, 1), *backend, {}).memory().total());
}

constexpr std::size_t kMib = std::size_t{1} << 20;

Config resolved(const Config& given, int ranks, std::int64_t fits, std::int64_t n_samples) {
  Config config = given;
  resolve_batch(config, ranks, fits, n_samples);
  return config;
}

TEST(BatchFit, FindsTheLargestMultipleOfEight) {
  for (const std::size_t mib : {300, 777, 2000}) {
    const std::int64_t found = fits(test::small_config(32, 16), mib * kMib);
    const double room = kUsableMemory * static_cast<double>(mib * kMib);
    EXPECT_EQ(found % 8, 0) << found;
    EXPECT_LE(planned_bytes(found), room) << found;
    EXPECT_GT(planned_bytes(found + 16), room) << found;
  }
}

TEST(BatchFit, StopsAtTheLimit) {
  EXPECT_EQ(fits(test::small_config(32, 16), 4096 * kMib, 37), 32);
  EXPECT_EQ(fits(test::small_config(32, 16), 4096 * kMib, 5), 5);
}

#ifdef LOCKSTEP_CUDA
/// ResNet-50 at 224x224 in fp16, planned for an H200 that is not here.
struct OnH200 {
  OnH200() {
    config.data.train = "synthetic";
    config.data.image_size = 224;
    config.model.depth = 50;
    config.model.stem = "imagenet";
    config.model.classes = 1000;
    config.precision = Precision::fp16;
    task =
        tasks::make_image_classification(config, data::make_synthetic_set(1, 64, 224, 224, 3, 1000, "train"), nullptr);
  }
  void plan(std::int64_t batch) {
    config.train.global_batch = batch;
    const StepPlan plan(config, *task, batch_shape(config, 0, 1), *backend, {});
  }
  Config config;
  std::unique_ptr<tasks::Task> task;
  std::unique_ptr<Backend> backend = make_planning_backend("h200");
};

// Host copies, such as that of a checkpoint, take no memory of a device. With all channels, the copy is as large as
// hundreds of images.
TEST(BatchFit, CountsOnlyTheMemoryOfTheDevice) {
  const auto t4 = make_planning_backend("t4");
  const auto whole = [](std::int64_t batch) {
    Config config = test::small_config(32, batch);
    config.model.width = 64;
    return config;
  };
  const auto of_device = [&](std::int64_t batch) {
    const Config config = whole(batch);
    const auto task = a_task(config);
    const MemoryReport memory = StepPlan(config, *task, batch_shape(config, 0, 1), *t4, {}).memory();
    EXPECT_LT(memory_of_device(memory, t4->memory_space()), memory.total());
    return static_cast<double>(memory_of_device(memory, t4->memory_space()));
  };
  constexpr std::size_t kMemory = 1000 * kMib;
  const Config config = whole(16);
  const std::int64_t found = batch_that_fits(config, *a_task(config), 1, *t4, {}, kMemory, 1 << 20);
  EXPECT_LE(of_device(found), kUsableMemory * kMemory) << found;
  EXPECT_GT(of_device(found + 16), kUsableMemory * kMemory) << found;
}

// 2,752 images fit into 141 GB, but after the first convolution they have more elements than cuDNN's kernels can
// address.
TEST(BatchFit, TriesASmallerBatchIfAnOpRefusesIt) {
  OnH200 h200;
  try {
    h200.plan(2752);
    ADD_FAILURE() << "2,752 images were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_NE(std::string(error.what()).find("2209349632 elements"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(h200.plan(2672));
  constexpr std::size_t kMemory = std::size_t{200} << 30;  // memory is not the limit
  EXPECT_EQ(batch_that_fits(h200.config, *h200.task, 1, *h200.backend, {}, kMemory, 1 << 20), 2672);
  const std::size_t of_h200 = h200.backend->device().memory_bytes;
  const std::int64_t found = batch_that_fits(h200.config, *h200.task, 1, *h200.backend, {}, of_h200, 1 << 20);
  EXPECT_GT(found, 2000);
  EXPECT_LE(found, 2672);
}
#endif

TEST(BatchFit, OneSampleThatDoesNotFitIsReported) {
  EXPECT_EQ(fits(test::small_config(32, 16), 4 * kMib), 0);
  Config config;
  EXPECT_EQ(resolved(config, 1, 0, 100).train.accumulate, 1) << "no key is auto, so this is no error";
  config.train.accumulate = Config::kAuto;
  try {
    resolved(config, 1, 0, 100);
    ADD_FAILURE() << "a batch that does not fit was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
}

TEST(BatchFit, HostMemoryIsCheckedToo) {
  const MemoryReport memory{.optimizer = 100 * kMib, .loader = 10 * kMib, .checkpoint = 20 * kMib};
  EXPECT_NO_THROW(require_host_memory(memory, 30 * kMib));
  EXPECT_THROW(require_host_memory(memory, 30 * kMib - 1), Error);
}

TEST(ResolveBatch, AsFewMicroBatchesAsFit) {
  Config config;
  config.train.global_batch = 1000;
  config.train.accumulate = Config::kAuto;
  EXPECT_TRUE(has_automatic_batch(config));
  EXPECT_EQ(resolved(config, 1, 1000, 5000).train.accumulate, 1);
  EXPECT_EQ(resolved(config, 1, 999, 5000).train.accumulate, 2);
  EXPECT_EQ(resolved(config, 3, 100, 5000).train.accumulate, 4);  // shards of 334, 333, 333
  EXPECT_EQ(resolved(config, 3, 100, 5000).train.global_batch, 1000);
}

TEST(ResolveBatch, NoneIsLargerThanTheBatchOfARank) {
  Config config;  // as after a resume: the run's global batch, and the configured batch per rank
  config.train.global_batch = 1024;
  config.train.batch_per_rank = 128;
  config.train.accumulate = Config::kAuto;
  EXPECT_EQ(resolved(config, 8, 4096, 5000).train.accumulate, 1);
  EXPECT_EQ(resolved(config, 3, 4096, 5000).train.accumulate, 3);
}

TEST(ResolveBatch, TheBatchOfARankMakesTheGlobalOne) {
  Config config;
  config.train.global_batch = 0;
  config.train.batch_per_rank = Config::kAuto;
  EXPECT_TRUE(has_automatic_batch(config));
  Config got = resolved(config, 4, 200, 5000);
  EXPECT_EQ(got.train.batch_per_rank, 200);
  EXPECT_EQ(configured_global_batch(got, 4), 800);
  got = resolved(config, 4, 2000, 5000);  // the data set is smaller: 1250 per rank
  EXPECT_EQ(got.train.batch_per_rank, 1248);
  config.train.accumulate = 2;
  EXPECT_EQ(configured_global_batch(resolved(config, 4, 200, 5000), 4), 1600);
  config.train.accumulate = Config::kAuto;
  EXPECT_EQ(resolved(config, 4, 100, 5000).train.accumulate, 1);
}

TEST(ResolveBatch, NumbersStay) {
  Config config;
  EXPECT_FALSE(has_automatic_batch(config));
  EXPECT_EQ(resolved(config, 4, 8, 5000).train.accumulate, 1);
  EXPECT_EQ(resolved(config, 4, 8, 5000).train.global_batch, config.train.global_batch);
}

TEST(ResolveBatch, FewerSamplesThanRanks) {
  Config config;
  config.train.global_batch = 0;
  config.train.batch_per_rank = Config::kAuto;
  EXPECT_THROW(resolved(config, 8, 100, 7), Error);
}

}  // namespace
}  // namespace lockstep::train
