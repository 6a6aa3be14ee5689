// Saving and loading: the same values are read back, the same content has the same bytes on any number of ranks, and a
// save that fails on one rank fails on all with that rank's message and leaves nothing behind.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <csignal>

#include "checkpoint/compare.h"
#include "checkpoint/reader.h"
#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

TEST(Save, RoundTripKeepsValuesShapesAndState) {
  ScratchDirectory scratch;
  const auto tensors = small_model();
  save_alone(scratch.file("a.h5"), tensors, small_state());
  EXPECT_EQ(scratch.n_entries(), 1u);

  const std::vector<NamedTensor> tensors_read = load_all(scratch.file("a.h5"));
  ASSERT_EQ(tensors_read.size(), tensors.size());
  EXPECT_TRUE(std::ranges::is_sorted(tensors_read, {}, &NamedTensor::name));
  for (const TensorSource& tensor : tensors) {
    const auto at = std::ranges::find(tensors_read, tensor.path, &NamedTensor::name);
    ASSERT_NE(at, tensors_read.end()) << tensor.path;
    EXPECT_EQ(at->shape, tensor.shape);
    for (std::size_t i = 0; i < at->values().size(); ++i)
      ASSERT_EQ(at->values()[i], value_of(tensor.path, static_cast<std::int64_t>(i))) << tensor.path << " " << i;
  }
  StateJson expected = small_state();
  expected["format_version"] = kFormatVersion;
  EXPECT_EQ(Reader(scratch.file("a.h5")).state(), expected);
  EXPECT_TRUE(verify(scratch.file("a.h5")).good);
  EXPECT_EQ(verify(scratch.file("a.h5")).step, 1200);
}

TEST(Save, WritesTheSameBytesOnAnyNumberOfRanks) {
  ScratchDirectory scratch;
  auto tensors = small_model(true);
  save_alone(scratch.file("1.h5"), tensors, small_state());
  const std::string one = bytes_of_file(scratch.file("1.h5"));
  std::ranges::reverse(tensors);  // the order in which they are given does not matter
  for (int size = 1; size <= 5; ++size) {
    const std::string path = scratch.file("other.h5");
    const auto errors = on_ranks(size, [&](World& world) { save(path, tensors, small_state(), world); });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    EXPECT_TRUE(bytes_of_file(path) == one) << size << " ranks";
  }
  EXPECT_TRUE(verify(scratch.file("other.h5")).good);
  EXPECT_EQ(scratch.n_entries(), 2u);
}

TEST(Save, ReadsOnlyTheShardOfEachRank) {
  ScratchDirectory scratch;
  constexpr int kSize = 4;
  constexpr int kTensors = 40;
  std::vector<std::atomic<int>> n_reads(kTensors);
  std::vector<std::atomic<int>> n_of_rank(kSize);
  const auto errors = on_ranks(kSize, [&](World& world) {
    std::vector<TensorSource> tensors;
    for (int i = 0; i < kTensors; ++i)
      tensors.push_back({fmt::format("/parameters/{}", i), Shape{1000}, [&, i](std::span<float> out) {
                           std::ranges::fill(out, 1.0f);
                           ++n_reads[static_cast<std::size_t>(i)];
                           ++n_of_rank[static_cast<std::size_t>(world.rank())];
                         }});
    save(scratch.file("a.h5"), tensors, small_state(), world);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  for (const auto& n : n_reads) EXPECT_EQ(n, 1);
  for (const auto& n : n_of_rank) EXPECT_EQ(n, kTensors / kSize);
}

TEST(Save, ManyTensorsAndALargeState) {
  ScratchDirectory scratch;
  std::vector<TensorSource> tensors;
  for (int i = 0; i < 700; ++i)
    tensors.push_back(source(fmt::format("/parameters/layers.{}.a_rather_long_name_of_a_weight", i), {3, 5}));
  StateJson state = small_state();
  state["configuration"] = std::string(200'000, 'c');
  save_alone(scratch.file("a.h5"), tensors, state);
  EXPECT_EQ(Reader(scratch.file("a.h5")).state()["configuration"], state["configuration"]);
  const std::vector<NamedTensor> tensors_read = load_all(scratch.file("a.h5"));
  ASSERT_EQ(tensors_read.size(), tensors.size());
  for (const NamedTensor& tensor : tensors_read)
    ASSERT_EQ(tensor.values()[14], value_of(tensor.name, 14)) << tensor.name;
}

TEST(Save, FailsOnAllRanksAndLeavesNothingIfOneRankFails) {
  ScratchDirectory scratch;
  save_alone(scratch.file("a.h5"), small_model(), small_state());
  const std::string before = bytes_of_file(scratch.file("a.h5"));
  const auto errors = on_ranks(3, [&](World& world) {
    std::vector<TensorSource> tensors;
    for (int i = 0; i < 30; ++i)
      tensors.push_back({fmt::format("/parameters/{}", i), Shape{1000}, [&](std::span<float>) {
                           if (world.rank() == 2) fail(ErrorCode::library, "the copy from the device failed");
                         }});
    save(scratch.file("a.h5"), tensors, small_state(), world);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "rank 2 on node0: the copy from the device failed");
  EXPECT_EQ(scratch.n_entries(), 1u);
  EXPECT_TRUE(bytes_of_file(scratch.file("a.h5")) == before);
}

TEST(Save, NamesAMissingOrInvalidDirectory) {
  ScratchDirectory scratch;
  write_file(scratch.file("plain"), "x");
  for (const char* directory : {"missing", "plain"}) {
    const std::string path = scratch.file(std::string(directory) + "/a.h5");
    const auto errors = on_ranks(2, [&](World& world) { save(path, small_model(), small_state(), world); });
    for (const auto& error : errors) {
      EXPECT_NE(error.find("cannot create " + path), std::string::npos) << error;
      EXPECT_NE(error.find("irectory"), std::string::npos) << error;
    }
  }
  EXPECT_EQ(scratch.n_entries(), 1u);
}

TEST(Save, ReportsAFullDiskAndKeepsTheOldFile) {
  // A limit on file sizes stands in for a full disk: the same calls fail, and the same code handles the error.
  ScratchDirectory scratch;
  const std::string path = scratch.file("a.h5");
  save_alone(path, small_model(), small_state());
  const std::string before = bytes_of_file(path);

  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  std::size_t n_failed = 0;
  // Limits below the size of the tensors, and one between that and the size of the whole file.
  for (const rlim_t limit : {rlim_t{1}, rlim_t{8000}, static_cast<rlim_t>(before.size() - 1)}) {
    rlimit small = old;
    small.rlim_cur = limit;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto errors = on_ranks(2, [&](World& world) { save(path, small_model(), small_state(1201), world); });
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_EQ(errors[0], errors[1]);
    if (errors[0].find("File too large") != std::string::npos) ++n_failed;
    EXPECT_EQ(scratch.n_entries(), 1u);
    EXPECT_TRUE(bytes_of_file(path) == before);
  }
  EXPECT_EQ(n_failed, 3u);
  std::signal(SIGXFSZ, old_handler);

  save_alone(path, small_model(), small_state(1201));  // the program continues, and can save again
  EXPECT_EQ(verify(path).step, 1201);
}

TEST(Save, ReportsAFullFileSystem) {
  // A file system of 160 KiB that only this process can see.
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    GTEST_SKIP() << "mounting a small file system is not allowed here";
  ScratchDirectory scratch;
  ASSERT_EQ(::mount("none", scratch.path().c_str(), "tmpfs", 0, "size=160k"), 0);
  save_alone(scratch.file("a.h5"), small_model(), small_state());
  const auto errors =
      on_ranks(2, [&](World& world) { save(scratch.file("b.h5"), small_model(), small_state(), world); });
  const std::size_t n_entries = scratch.n_entries();
  const bool good = verify(scratch.file("a.h5")).good;
  ASSERT_EQ(::umount(scratch.path().c_str()), 0);
  for (const auto& error : errors) EXPECT_NE(error.find("No space left on device"), std::string::npos) << error;
  EXPECT_EQ(n_entries, 1u);
  EXPECT_TRUE(good);
}

TEST(Save, RejectsInvalidListsOfTensors) {
  ScratchDirectory scratch;
  const std::string path = scratch.file("a.h5");
  EXPECT_NE(error_of([&] { save_alone(path, {source("/a", {2}), source("/a", {2})}, small_state()); }), "");
  EXPECT_NE(error_of([&] { save_alone(path, {source("/a", {2, 0})}, small_state()); }), "");
  EXPECT_NE(error_of([&] { save_alone(path, {source("a", {2})}, small_state()); }), "");
  EXPECT_EQ(scratch.n_entries(), 0u);
}

TEST(Load, LoadsRequestedTensorsAndNamesMismatches) {
  ScratchDirectory scratch;
  const std::string path = scratch.file("a.h5");
  save_alone(path, small_model(), small_state());
  std::vector<float> got;
  const auto keep = [&](std::span<const float> values) { got.assign(values.begin(), values.end()); };
  const StateJson state = load(path, {{"/parameters/fc.bias", {10}, keep}});
  EXPECT_EQ(state["step"], 1200);
  ASSERT_EQ(got.size(), 10u);
  EXPECT_EQ(got[9], value_of("/parameters/fc.bias", 9));

  // If the list does not fit, the model is unchanged, even by the tensors that come first in the list.
  got.clear();
  EXPECT_EQ(error_of([&] {
              load(path, {{"/parameters/fc.bias", {10}, keep}, {"/parameters/fc.wait", {2}, keep}});
            }),
            path + " has no /parameters/fc.wait, which the model expects with the shape (2)");
  EXPECT_EQ(error_of([&] {
              load(path, {{"/parameters/fc.bias", {10}, keep}, {"/parameters/fc.weight", {100, 513}, keep}});
            }),
            "/parameters/fc.weight of " + path + " has the shape (10, 513), the model expects (100, 513)");
  EXPECT_TRUE(got.empty());
  EXPECT_NE(error_of([&] { Reader(scratch.file("none.h5")).state(); }).find("No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { Reader(scratch.path()).state(); }).find("is not a regular file"), std::string::npos);
}

TEST(Compare, FindsDifferingTensors) {
  ScratchDirectory scratch;
  auto tensors = small_model();
  save_alone(scratch.file("a.h5"), tensors, small_state());
  save_alone(scratch.file("b.h5"), tensors, small_state(1300));
  Comparison result = compare(scratch.file("a.h5"), scratch.file("b.h5"));
  EXPECT_TRUE(result.equal());
  EXPECT_EQ(result.n_compared, static_cast<std::int64_t>(tensors.size()));
  EXPECT_EQ(result.state_keys, std::vector<std::string>{"step"});

  tensors[6].read = [](std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = value_of("/parameters/fc.weight", static_cast<std::int64_t>(i)) + (i % 100 == 7 ? 0.5f : 0.0f);
  };
  tensors[0].path = "/parameters/renamed";
  tensors[1].shape = {8, 8};
  save_alone(scratch.file("b.h5"), tensors, small_state());
  result = compare(scratch.file("a.h5"), scratch.file("b.h5"));
  EXPECT_FALSE(result.equal());
  EXPECT_EQ(result.only_in_a, std::vector<std::string>{"/parameters/layer1.0.conv1.weight"});
  EXPECT_EQ(result.only_in_b, std::vector<std::string>{"/parameters/renamed"});
  ASSERT_EQ(result.differing.size(), 2u);
  EXPECT_EQ(result.differing[0].path, "/parameters/bn1.weight");
  EXPECT_EQ(result.differing[0].shape_b, Shape({8, 8}));
  EXPECT_EQ(result.differing[1].path, "/parameters/fc.weight");
  EXPECT_EQ(result.differing[1].n_values, 5130);
  EXPECT_EQ(result.differing[1].n_differing, 52);
  EXPECT_EQ(result.differing[1].first_index, 7);
  EXPECT_NEAR(result.differing[1].max_absolute, 0.5, 1e-4);
}

// A run that resumes then takes the previous checkpoint, as if the file were damaged.
TEST(Load, RefusesValuesThatAreNotFinite) {
  const ScratchDirectory scratch;
  const auto save_values = [&](std::vector<float> values) {
    save_alone(scratch.file("a.h5"),
               {{"/parameters/p", Shape{3}, [=](std::span<float> out) { std::ranges::copy(values, out.begin()); }}},
               small_state());
  };
  const auto load_error = [&] {
    return error_of([&] { load(scratch.file("a.h5"), {{"/parameters/p", {3}, [](std::span<const float>) {}}}); });
  };
  save_values({-3.4e38f, 1e-45f, -0.0f});
  EXPECT_EQ(load_error(), "");
  EXPECT_TRUE(verify(scratch.file("a.h5")).good);
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    save_values({1, value, 2});
    EXPECT_NE(load_error().find("/parameters/p of "), std::string::npos) << load_error();
    EXPECT_NE(load_error().find("is not finite: 1 of its 3 values is infinite or NaN, the first of them number 1"),
              std::string::npos)
        << load_error();
    const Verdict verdict = verify(scratch.file("a.h5"));
    EXPECT_FALSE(verdict.good);
    EXPECT_EQ(verdict.code, ErrorCode::checkpoint_damaged);
    EXPECT_NE(verdict.sentence.find("is not finite"), std::string::npos) << verdict.sentence;
  }
}

TEST(Compare, DistinguishesTheSignOfZeroAndNaN) {
  ScratchDirectory scratch;
  const auto save_values = [&](const std::string& name, std::vector<float> values) {
    save_alone(scratch.file(name),
               {{"/p", Shape{3}, [=](std::span<float> out) { std::ranges::copy(values, out.begin()); }}},
               small_state());
  };
  save_values("a.h5", {0.0f, NAN, 1.0f});
  save_values("b.h5", {-0.0f, NAN, 1.0f});
  save_values("c.h5", {0.0f, 2.0f, 5.0f});
  const Comparison zero = compare(scratch.file("a.h5"), scratch.file("b.h5"));
  ASSERT_EQ(zero.differing.size(), 1u);
  EXPECT_EQ(zero.differing[0].n_differing, 1);
  EXPECT_EQ(zero.differing[0].max_absolute, 0.0);
  const Comparison nan = compare(scratch.file("a.h5"), scratch.file("c.h5"));
  ASSERT_EQ(nan.differing.size(), 1u);
  EXPECT_EQ(nan.differing[0].n_differing, 2);
  EXPECT_TRUE(std::isnan(nan.differing[0].max_absolute));
}

}  // namespace
}  // namespace lockstep::checkpoint::test
