// The loader: its sequence follows the global order for any number of ranks, micro-batches and readers, even after
// resuming at any step.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "data/image_set.h"
#include "data/sample_order.h"
#include "test/data/files.h"

// Counts this program's allocations, to show that the loader allocates nothing while it runs. Not inlined, because GCC
// would report the free() as a mistake.
namespace {
std::atomic<long> n_allocations{0};
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++n_allocations;
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace lockstep::data {
namespace {

/// Images of test_byte(), numbered from `first_sample`. Sample `bad_sample` cannot be read; reads may be delayed.
class MemorySet : public ImageSet {
 public:
  explicit MemorySet(std::int64_t n_samples, std::int64_t bad_sample = -1, std::int64_t first_sample = 0)
      : bad_sample_(bad_sample) {
    info_.first_sample = first_sample;
    info_.path = "memory";
    info_.n_samples = n_samples;
    info_.height = 3;
    info_.width = 2;
    info_.channels = 3;
    info_.classes = 7;
  }
  const ImageSetInfo& info() const override { return info_; }
  void read_image(std::int64_t sample, std::uint32_t, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    const int running = ++n_running_;
    for (int most = most_at_once; most < running && !most_at_once.compare_exchange_weak(most, running);) continue;
    const OnExit leave{n_running_};
    // The sample at `bad_sample_` fails last.
    if (sample == bad_sample_ && also_bad >= 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    require(sample != bad_sample_ && sample != also_bad, ErrorCode::system_call, "sample {} is bad", sample);
    if (delay_milliseconds > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_milliseconds));
    for (std::size_t i = 0; i < image.size(); ++i) image[i] = test_byte(info_.first_sample + sample, i);
    label = test_label(info_.first_sample + sample, info_.classes);
    ++n_reads;
  }
  mutable std::atomic<std::int64_t> n_reads{0};
  mutable std::atomic<int> most_at_once{0};  // maximum number of concurrent reads
  int delay_milliseconds = 0;
  std::int64_t also_bad = -1;  // a second sample that cannot be read

 private:
  struct OnExit {
    std::atomic<int>& count;
    ~OnExit() { --count; }
  };
  mutable std::atomic<int> n_running_{0};
  ImageSetInfo info_;
  std::int64_t bad_sample_;
};

LoaderOptions options_for(std::int64_t global_batch, int size = 1, int n_micro_batches = 1) {
  LoaderOptions options;
  options.global_batch = global_batch;
  options.total_shards = size;
  options.n_micro_batches = n_micro_batches;
  const std::int64_t shard = (global_batch + size - 1) / size;
  options.capacity = (shard + n_micro_batches - 1) / n_micro_batches;
  options.seed = 5;
  return options;
}

template <typename T>
std::span<const T> field(const Batch& batch, std::size_t i) {
  return {reinterpret_cast<const T*>(batch.fields[i].data()), batch.fields[i].size() / sizeof(T)};
}

/// Checks the batch against the set and the padding after n_samples; returns its sample ids.
std::vector<std::uint32_t> checked(const Batch& batch, const ImageSetInfo& info, std::int64_t capacity) {
  const auto n = static_cast<std::size_t>(batch.n_samples);
  const auto images = field<std::uint8_t>(batch, 0);
  const auto labels = field<std::int32_t>(batch, 1);
  const auto sample_ids = field<std::uint32_t>(batch, 2);
  EXPECT_EQ(labels.size(), static_cast<std::size_t>(capacity));
  EXPECT_EQ(sample_ids.size(), static_cast<std::size_t>(capacity));
  EXPECT_EQ(images.size(), static_cast<std::size_t>(capacity) * info.image_bytes());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto image = images.subspan(i * info.image_bytes(), info.image_bytes());
    std::vector<std::uint8_t> expected(info.image_bytes(), 0);
    if (i < n) expected = test_image(sample_ids[i], info.image_bytes());
    EXPECT_TRUE(std::equal(image.begin(), image.end(), expected.begin())) << "image " << i << " of " << n;
    EXPECT_EQ(labels[i], i < n ? test_label(sample_ids[i], info.classes) : -1);
    EXPECT_TRUE(i < n || sample_ids[i] == 0);
  }
  return {sample_ids.begin(), sample_ids.begin() + batch.n_samples};
}

/// Sample ids of `n_steps` steps of one rank, one vector per step.
std::vector<std::vector<std::uint32_t>> steps_of(const std::shared_ptr<const ImageSet>& set,
                                                 const LoaderOptions& options, std::int64_t n_steps) {
  Loader loader(set, options);
  std::vector<std::vector<std::uint32_t>> out(static_cast<std::size_t>(n_steps));
  for (auto& step : out)
    for (int micro_batch = 0; micro_batch < options.n_micro_batches; ++micro_batch) {
      const auto ids = checked(loader.next(), set->info(), options.capacity);
      step.insert(step.end(), ids.begin(), ids.end());
    }
  return out;
}

/// The samples that all ranks together must return, by definition.
std::vector<std::vector<std::uint32_t>> expected_steps(std::int64_t n, const LoaderOptions& o, std::int64_t n_steps) {
  const std::int64_t epoch_samples = o.max_samples > 0 ? std::min(o.max_samples, n) : n;
  const std::int64_t per_epoch = Loader::steps_per_epoch(epoch_samples, o.global_batch, o.drop_last);
  std::vector<std::vector<std::uint32_t>> out;
  for (std::int64_t i = 0; i < n_steps; ++i) {
    const std::int64_t step = o.first_step + i, begin = step % per_epoch * o.global_batch;
    const auto order = epoch_order(o.seed, static_cast<std::uint32_t>(step / per_epoch), n, o.shuffle);
    out.emplace_back(order.begin() + begin, order.begin() + std::min(begin + o.global_batch, epoch_samples));
  }
  return out;
}

// Crop and flip are drawn from these numbers, so the numbers must not depend on the range that is trained on.
TEST(Loader, NumbersSamplesByTheirPositionInTheFile) {
  const std::int64_t first = 20, n = 30;
  const auto options = options_for(10);
  const auto ids = steps_of(std::make_shared<MemorySet>(n, -1, first), options, 3);
  auto expected = steps_of(std::make_shared<MemorySet>(n), options, 3);
  for (auto& step : expected)
    for (auto& id : step) id += static_cast<std::uint32_t>(first);
  EXPECT_EQ(ids, expected);
}

TEST(Loader, ReturnsTheGlobalOrderForAnyNumberOfRanksMicroBatchesAndReaders) {
  const auto set = std::make_shared<MemorySet>(53);
  for (const bool drop_last : {true, false})
    for (const bool shuffle : {true, false})
      for (int size = 1; size <= 7; ++size)
        for (const int n_micro_batches : {1, 2, 3})
          for (const int readers : {1, 4}) {
            LoaderOptions options = options_for(10, size, n_micro_batches);
            options.drop_last = drop_last;
            options.shuffle = shuffle;
            options.readers = readers;
            std::vector<std::vector<std::uint32_t>> together(13);
            for (int rank = 0; rank < size; ++rank) {
              options.first_shard = rank;
              const auto mine = steps_of(set, options, 13);
              for (std::size_t i = 0; i < mine.size(); ++i)
                together[i].insert(together[i].end(), mine[i].begin(), mine[i].end());
            }
            ASSERT_EQ(together, expected_steps(53, options, 13))
                << size << " ranks, " << n_micro_batches << " micro-batches, " << readers << " readers";
          }
}

/// Ranks run micro-batches in turn: those of all ranks, one of each after another, are the global order.
TEST(Loader, ReturnsTheGlobalOrderOfInterleavedMicroBatches) {
  const auto set = std::make_shared<MemorySet>(53);
  constexpr int kShards = 6, kSteps = 9;
  for (const bool drop_last : {true, false})
    for (const int size : {1, 2, 3, 6}) {
      LoaderOptions options = options_for(13, kShards);  // of unequal micro-batches
      options.drop_last = drop_last;
      options.n_micro_batches = kShards / size;
      options.shard_stride = size;
      std::vector<std::unique_ptr<Loader>> loaders;
      for (options.first_shard = 0; options.first_shard < size; ++options.first_shard)
        loaders.push_back(std::make_unique<Loader>(set, options));
      std::vector<std::vector<std::uint32_t>> together(kSteps);
      for (auto& step : together)
        for (int micro_batch = 0; micro_batch < options.n_micro_batches; ++micro_batch)
          for (const auto& loader : loaders) {
            const auto ids = checked(loader->next(), set->info(), options.capacity);
            step.insert(step.end(), ids.begin(), ids.end());
          }
      EXPECT_EQ(together, expected_steps(53, options, kSteps)) << size << " ranks";
    }
}

// Micro-batches of 17 to 67 samples are read by several readers at once.
TEST(Loader, ReturnsTheSameBatchesWhenReadersShareThem) {
  const auto set = std::make_shared<MemorySet>(300);
  for (const int n_micro_batches : {1, 3})
    for (const bool drop_last : {true, false})
      for (const int readers : {1, 2, 7, 24}) {
        LoaderOptions options = options_for(67, 1, n_micro_batches);
        options.drop_last = drop_last;
        options.readers = readers;
        EXPECT_EQ(steps_of(set, options, 11), expected_steps(300, options, 11)) << readers << " readers";
      }
}

// With a prefetch of one micro-batch, all readers after the third would be idle if each read a whole micro-batch.
TEST(Loader, AllReadersOfASlowSetWorkAtOnce) {
  for (const int readers : {8, 24}) {
    const auto set = std::make_shared<MemorySet>(600);
    set->delay_milliseconds = 20;
    LoaderOptions options = options_for(200);
    options.readers = readers;
    options.prefetch = 1;
    Loader loader(set, options);
    checked(loader.next(), set->info(), 200);
    EXPECT_EQ(set->most_at_once, readers);
  }
}

// A reader takes at least 8 samples at a time, so one reader is enough for a few samples.
TEST(Loader, FewSamplesAreReadByOneReader) {
  for (const auto& [batch, parts] : {std::pair{15, 1}, {16, 2}, {31, 3}, {64, 8}}) {
    const auto set = std::make_shared<MemorySet>(batch);
    set->delay_milliseconds = 20;
    LoaderOptions options = options_for(batch);
    options.readers = 16;
    options.last_step = 1;
    Loader loader(set, options);
    checked(loader.next(), set->info(), batch);
    EXPECT_EQ(set->most_at_once, parts) << "batch " << batch;
  }
}

TEST(Loader, CountsWhatItsReadersDo) {
  const auto set = std::make_shared<MemorySet>(64);
  set->delay_milliseconds = 10;
  LoaderOptions options = options_for(64);
  options.readers = 4;
  options.last_step = 1;
  Loader loader(set, options);
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  EXPECT_GT(loader.usage().busy_seconds, 0) << "all readers are at work, but none has finished";
  loader.next();
  const LoaderUsage usage = loader.usage();
  EXPECT_EQ(usage.n_samples, 64);
  EXPECT_GE(usage.read_seconds, 64 * 0.010);
  EXPECT_DOUBLE_EQ(usage.busy_seconds, usage.read_seconds) << "no reader is at work";
  EXPECT_DOUBLE_EQ(usage.wait_seconds, loader.wait_seconds());
}

TEST(Loader, ReturnsEachSampleOncePerEpochWhenResumedOnOtherRanks) {
  constexpr std::int64_t kSamples = 100, kBatch = 8, kSteps = 13;
  const auto set = std::make_shared<MemorySet>(kSamples);
  std::vector<int> seen(kSamples, 0);
  std::int64_t step = kSteps;  // epoch 1
  for (const auto& [size, n_steps] : {std::pair{2, 3}, {7, 4}, {1, 1}, {3, 5}}) {
    for (int rank = 0; rank < size; ++rank) {
      LoaderOptions options = options_for(kBatch, size);
      options.first_shard = rank;
      options.drop_last = false;
      options.first_step = step;
      options.last_step = step + n_steps;
      for (const auto& ids : steps_of(set, options, n_steps))
        for (const std::uint32_t id : ids) ++seen[id];
    }
    step += n_steps;
  }
  ASSERT_EQ(step, 2 * kSteps);
  EXPECT_EQ(seen, std::vector<int>(kSamples, 1));
}

TEST(Loader, EvaluationCountsEachSampleOnceIfTheLastBatchIsSmallerThanTheWorld) {
  const auto set = std::make_shared<MemorySet>(17);
  std::vector<int> seen(17, 0);
  int n_empty = 0;
  for (int rank = 0; rank < 5; ++rank) {
    LoaderOptions options = options_for(8, 5);
    options.first_shard = rank;
    options.shuffle = options.drop_last = false;
    const auto steps = steps_of(set, options, 3);
    for (const auto& ids : steps)
      for (const std::uint32_t id : ids) ++seen[id];
    n_empty += steps.back().empty();
  }
  EXPECT_EQ(seen, std::vector<int>(17, 1));
  EXPECT_EQ(n_empty, 4);
}

TEST(Loader, RunsManyEpochsInOneRing) {
  const auto set = std::make_shared<MemorySet>(3);
  LoaderOptions options = options_for(3);
  options.prefetch = 5;
  options.readers = 4;
  EXPECT_EQ(steps_of(set, options, 200), expected_steps(3, options, 200));
}

TEST(Loader, MaxSamplesSelectsTheFirstOfTheOrder) {
  const auto set = std::make_shared<MemorySet>(50);
  LoaderOptions options = options_for(8);
  options.max_samples = 20;
  options.drop_last = false;
  EXPECT_EQ(steps_of(set, options, 7), expected_steps(50, options, 7));
}

TEST(Loader, ReadsNoFurtherAheadThanPrefetchAndKeepsTheCallersTwoBatches) {
  const auto set = std::make_shared<MemorySet>(1000);
  LoaderOptions options = options_for(4);
  options.readers = 4;
  options.prefetch = 2;
  Loader loader(set, options);
  const Batch* last = nullptr;
  std::vector<std::uint32_t> in_last;
  for (int i = 1; i <= 20; ++i) {
    const Batch& batch = loader.next();
    const std::vector<std::uint32_t> before = checked(batch, set->info(), 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // time for readers to read too far ahead
    EXPECT_EQ(checked(batch, set->info(), 4), before);
    if (last != nullptr) {
      EXPECT_EQ(checked(*last, set->info(), 4), in_last) << "the batch may still be being copied to a device";
    }
    last = &batch;
    in_last = before;
    EXPECT_LE(set->n_reads, (std::max(i, 2) + 2) * 4);  // the caller holds two batches from the start
  }
}

TEST(Loader, ReturnsWhatWasReadBeforeAnErrorAndThenTheError) {
  const auto order = epoch_order(5, 0, 40, true);
  for (const int readers : {1, 4}) {
    const auto set = std::make_shared<MemorySet>(40, order[13]);  // in step 3 of batch 4
    LoaderOptions options = options_for(4);
    options.readers = readers;
    Loader loader(set, options);
    for (int i = 0; i < 3; ++i) checked(loader.next(), set->info(), 4);
    EXPECT_ERROR(ErrorCode::system_call, "is bad", loader.next());
    EXPECT_ERROR(ErrorCode::system_call, "is bad", loader.next());
  }
}

// Several samples of a batch are bad: whichever reader fails first, the error reported is that of the first sample.
TEST(Loader, ReportsTheFirstErrorOfABatchForAnyNumberOfReaders) {
  const auto order = epoch_order(5, 0, 64, true);
  for (const int readers : {1, 8}) {
    const auto set = std::make_shared<MemorySet>(64, order[20]);
    set->also_bad = order[60];
    LoaderOptions options = options_for(64);
    options.readers = readers;
    Loader loader(set, options);
    EXPECT_ERROR(ErrorCode::system_call, fmt::format("sample {} is bad", order[20]), loader.next());
  }
}

// The caller only waits for slow reads. A busy machine may delay it between two waits, so the bound is only a tenth.
TEST(Loader, MeasuresTheTimeSpentWaiting) {
  const auto set = std::make_shared<MemorySet>(8);
  set->delay_milliseconds = 5;
  LoaderOptions options = options_for(2);
  options.prefetch = 1;
  const auto start = std::chrono::steady_clock::now();
  Loader loader(set, options);
  for (int i = 0; i < 20; ++i) loader.next();
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GT(loader.wait_seconds(), 0.1 * elapsed);
  EXPECT_LE(loader.wait_seconds(), elapsed);
}

TEST(Loader, RejectsImpossibleOptions) {
  const auto set = std::make_shared<MemorySet>(7);
  EXPECT_ERROR(ErrorCode::data_range, "train.global_batch", Loader(set, options_for(8)));
  LoaderOptions options = options_for(8, 2);
  options.drop_last = false;
  options.capacity = 3;
  EXPECT_ERROR(ErrorCode::internal, "capacity", Loader(set, options));
  options.capacity = 4;
  options.last_step = 2;
  Loader loader(set, options);
  loader.next();
  loader.next();
  EXPECT_ERROR(ErrorCode::internal, "has only 2 micro-batches", loader.next());
}

/// Sequences of numbers and a mask: fields that the loader knows nothing about.
class SequenceSet final : public Dataset {
 public:
  SequenceSet() {
    info_.path = "sequences";
    info_.n_samples = 10;
  }
  const DatasetInfo& info() const override { return info_; }
  std::vector<Field> fields() const override {
    return {{.name = "mask", .dtype = DType::uint8, .shape = {5}, .padding_byte = 7},
            {.name = "tokens", .dtype = DType::int32, .shape = {5}},
            {.name = "weight", .dtype = DType::fp64, .shape = {}, .padding_byte = 0xff}};
  }
  void read(std::int64_t sample, std::uint32_t epoch, std::span<const std::span<std::byte>> targets) const override {
    std::ranges::fill(targets[0], static_cast<std::byte>(sample));
    auto* tokens = reinterpret_cast<std::int32_t*>(targets[1].data());
    for (int i = 0; i < 5; ++i) tokens[i] = static_cast<std::int32_t>(100 * sample + 10 * epoch) + i;
    *reinterpret_cast<double*>(targets[2].data()) = static_cast<double>(sample) / 2;
  }

 private:
  DatasetInfo info_;
};

TEST(Loader, LoadsSetsWithAnyFields) {
  LoaderOptions options = options_for(4);
  options.shuffle = options.drop_last = false;
  Loader loader(std::make_shared<SequenceSet>(), options);
  EXPECT_EQ(Loader::buffer_bytes(SequenceSet().fields(), 4, 3), 5u * 4 * (5 + 20 + 8));
  for (std::int64_t step = 0; step < 6; ++step) {
    const Batch& batch = loader.next();
    const auto mask = field<std::uint8_t>(batch, 0);
    const auto tokens = field<std::int32_t>(batch, 1);
    const auto weights = field<double>(batch, 2);
    ASSERT_EQ(mask.size(), 20u);
    ASSERT_EQ(tokens.size(), 20u);
    ASSERT_EQ(weights.size(), 4u);
    EXPECT_EQ(batch.n_samples, step % 3 == 2 ? 2 : 4);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights.data()) % alignof(double), 0u);
    for (std::size_t i = 0; i < 4; ++i) {
      const bool is_there = static_cast<std::int64_t>(i) < batch.n_samples;
      const auto sample = static_cast<int>(step % 3 * 4) + static_cast<int>(i);
      EXPECT_EQ(mask[5 * i + 4], is_there ? sample : 7);
      EXPECT_EQ(tokens[5 * i + 3], is_there ? 100 * sample + 10 * (step / 3) + 3 : 0);
      if (is_there) {
        EXPECT_EQ(weights[i], sample / 2.0);
      } else {
        EXPECT_TRUE(std::isnan(weights[i]));  // every bit is set
      }
    }
  }
}

TEST(Loader, AllocatesNothingButTheOrderOfAnEpoch) {
  TemporaryFolder folder;
  write_test_set(folder / "set.h5", {.n_samples = 64});
  const std::shared_ptr<const ImageSet> set = open_image_set(folder / "set.h5");
  for (const bool shuffle : {false, true}) {
    LoaderOptions options = options_for(8);
    options.shuffle = shuffle;
    Loader loader(set, options);
    for (int i = 0; i < 16; ++i) loader.next();
    const long before = n_allocations;
    for (int i = 0; i < 80; ++i) loader.next();           // 10 epochs
    EXPECT_LE(n_allocations - before, shuffle ? 11 : 0);  // the reader may be an epoch ahead
  }
}

}  // namespace
}  // namespace lockstep::data
