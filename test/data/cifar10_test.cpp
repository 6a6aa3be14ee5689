// Import of CIFAR-10's binary batches, from batches made up here.
#include "data/import.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "test/data/files.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRecord = 3073;

/// The planar layout: plane c, pixel i of record r.
std::uint8_t record_byte(std::size_t r, std::size_t c, std::size_t i) {
  return static_cast<std::uint8_t>(r * 37 + c * 101 + i * 3 + i / 32);
}

std::string batch(std::size_t first, std::size_t n_records) {
  std::string out;
  for (std::size_t r = first; r < first + n_records; ++r) {
    out.push_back(static_cast<char>(r % 10));
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t i = 0; i < 1024; ++i) out.push_back(static_cast<char>(record_byte(r, c, i)));
  }
  return out;
}

class Cifar10 : public ::testing::Test {
 protected:
  Cifar10() {
    fs::create_directory(source());
    write_all(source() + "/data_batch_1.bin", batch(0, 30));
    write_all(source() + "/data_batch_2.bin", batch(30, 20));
    write_all(source() + "/test_batch.bin", batch(50, 20));
    std::string names;
    for (int k = 0; k < 10; ++k) names += "kind" + std::to_string(k) + "\n";
    write_all(source() + "/batches.meta.txt", names + "\n");
  }
  std::string source() const { return folder_ / "cifar-10-batches-bin"; }
  ImportOptions options() const {
    ImportOptions o;
    o.source = source();
    o.output = folder_ / "out.h5";
    o.replace = true;
    return o;
  }

  TemporaryFolder folder_;
};

void expect_record(const ImageSet& set, std::int64_t sample, std::size_t record) {
  std::vector<std::uint8_t> image(set.info().image_bytes());
  std::int32_t label = -1;
  set.read_image(sample, 0, image, label);
  EXPECT_EQ(label, static_cast<std::int32_t>(record % 10));
  for (std::size_t i = 0; i < 1024; ++i)
    for (std::size_t c = 0; c < 3; ++c) ASSERT_EQ(image[i * 3 + c], record_byte(record, c, i)) << "sample " << sample;
}

TEST_F(Cifar10, ImportsTheTrainSplitInTheOrderOfTheFiles) {
  const ImportResult result = import_cifar10(options(), {});
  EXPECT_EQ(result.info.n_samples, 50);
  EXPECT_EQ(result.files, (std::vector<std::string>{"data_batch_1.bin", "data_batch_2.bin"}));
  EXPECT_EQ(result.samples_per_class, std::vector<std::int64_t>(10, 5));
  EXPECT_EQ(result.size_bytes, fs::file_size(options().output));
  const auto set = open_image_set(options().output);
  EXPECT_EQ(set->info().height, 32);
  EXPECT_EQ(set->info().class_names.at(9), "kind9");
  for (std::int64_t i = 0; i < 50; ++i) expect_record(*set, i, static_cast<std::size_t>(i));

  for (std::size_t c = 0; c < 3; ++c) {
    long double sum = 0, squares = 0;
    for (std::size_t r = 0; r < 50; ++r)
      for (std::size_t i = 0; i < 1024; ++i) {
        const long double v = record_byte(r, c, i) / 255.0L;
        sum += v;
        squares += v * v;
      }
    const long double n = 50 * 1024, mean = sum / n;
    EXPECT_FLOAT_EQ(set->info().mean[c], static_cast<float>(mean));
    EXPECT_FLOAT_EQ(set->info().stddev[c], static_cast<float>(std::sqrt(squares / n - mean * mean)));
  }
}

TEST_F(Cifar10, NeverReplacesItsSources) {
  ImportOptions onto = options();
  onto.replace = true;
  for (const char* name : {"data_batch_2.bin", "batches.meta.txt"}) {
    onto.output = onto.source + "/" + name;
    const std::string before = read_all(onto.output);
    EXPECT_ERROR(ErrorCode::usage, "is an input of this command", import_cifar10(onto, {}));
    EXPECT_TRUE(read_all(onto.output) == before);
  }
}

TEST_F(Cifar10, RepeatedImportsWriteTheSameBytes) {
  import_cifar10(options(), {});
  const std::string first = read_all(options().output);
  ImportOptions second = options();
  second.output = folder_ / "second.h5";
  import_cifar10(second, {});
  EXPECT_EQ(read_all(second.output), first);
}

TEST_F(Cifar10, ImportsTheTestSplitWithSpecifiedStatistics) {
  ImportOptions o = options();
  o.split = "test";
  o.mean = {0.1f, 0.2f, 0.3f};
  o.stddev = {0.4f, 0.5f, 0.6f};
  o.source = folder_.path();  // the folder above it is accepted too
  import_cifar10(o, {});
  const auto set = open_image_set(o.output);
  EXPECT_EQ(set->info().split, "test");
  EXPECT_EQ(set->info().mean, o.mean);
  EXPECT_EQ(set->info().stddev, o.stddev);
  expect_record(*set, 0, 50);
  EXPECT_EQ(set->info().n_samples, 20);
}

TEST_F(Cifar10, ImportsOneFileAndLimitsSamples) {
  ImportOptions o = options();
  o.source = source() + "/data_batch_2.bin";
  o.limit = 7;
  EXPECT_EQ(import_cifar10(o, {}).info.n_samples, 7);
  expect_record(*open_image_set(o.output), 6, 36);
  o = options();
  o.per_class = 2;
  EXPECT_EQ(import_cifar10(o, {}).samples_per_class, std::vector<std::int64_t>(10, 2));
  expect_record(*open_image_set(o.output), 19, 19);
  o.per_class = 6;
  EXPECT_ERROR(ErrorCode::data_range, "60 samples are requested", import_cifar10(o, {}));
  write_all(source() + "/data_batch_3.bin", batch(0, 9));
  EXPECT_ERROR(ErrorCode::data_range, "60 samples are requested, but", import_cifar10(o, {}));
  write_all(source() + "/data_batch_3.bin", batch(0, 9) + batch(0, 9));
  EXPECT_ERROR(ErrorCode::data_range, "contains 5 of class 9", import_cifar10(o, {}));
}

TEST_F(Cifar10, NamesTrainBatchesThatAreMissing) {
  EXPECT_NE(import_cifar10(options(), {}).missing.find("lacks data_batch_3.bin, data_batch_4.bin, data_batch_5.bin of"),
            std::string::npos);
  for (const char* name : {"3", "5"}) write_all(source() + "/data_batch_" + name + ".bin", batch(0, 10));
  EXPECT_NE(import_cifar10(options(), {}).missing.find("lacks data_batch_4.bin of"), std::string::npos);
  write_all(source() + "/data_batch_4.bin", batch(0, 10));
  EXPECT_EQ(import_cifar10(options(), {}).missing, "");
  ImportOptions o = options();
  o.source = source() + "/data_batch_2.bin";  // naming one file imports only that file
  EXPECT_EQ(import_cifar10(o, {}).missing, "");
  o = options();
  o.split = "test";
  EXPECT_EQ(import_cifar10(o, {}).missing, "");
}

TEST_F(Cifar10, RejectsStatisticsThatAreNotPossible) {
  const auto refused = [&](std::vector<float> mean, std::vector<float> stddev, const std::string& message) {
    ImportOptions o = options();
    o.mean = std::move(mean);
    o.stddev = std::move(stddev);
    EXPECT_ERROR(ErrorCode::usage, message, import_cifar10(o, {}));
    EXPECT_FALSE(fs::exists(o.output));
  };
  const std::vector<float> good = {0.25f, 0.25f, 0.25f};
  refused({0.5f, NAN, 0.5f}, {},
          "--mean is for pixel values from 0 to 1: expected numbers of at least 0 and at most 1");
  refused({0.5f, 0.5f, INFINITY}, good, "found inf");
  refused({0.5f, -0.5f, 0.5f}, good, "found -0.5");
  refused({120, 120, 120}, good, "found 120; if it is for values from 0 to 255, divide it by 255: 0.4706");
  refused(good, {0.25f, 0.25f, 0}, "--std is for pixel values from 0 to 1: expected numbers greater than 0");
  refused(good, {-1, 1, 1}, "found -1");
  refused({}, {NAN, 1, 1}, "--std");
  refused({}, {58, 58, 58}, "divide it by 255: 0.2275");
  ImportOptions o = options();
  o.mean = {0, 1, 0};  // valid
  o.stddev = {1, 1, 1};
  EXPECT_EQ(import_cifar10(o, {}).info.stddev, o.stddev);
}

TEST_F(Cifar10, ReportsBadSourcesAndLeavesNothing) {
  ImportOptions o = options();
  o.source = folder_ / "none";
  EXPECT_ERROR(ErrorCode::data_source, "does not exist", import_cifar10(o, {}));
  o.source = folder_ / "empty";
  fs::create_directory(o.source);
  EXPECT_ERROR(ErrorCode::data_source, "data_batch_*.bin", import_cifar10(o, {}));
  o.source = source() + "/data_batch_1.bin";
  write_all(o.source, batch(0, 3).substr(1));
  EXPECT_ERROR(ErrorCode::data_source, "multiple of 3073", import_cifar10(o, {}));
  write_all(o.source, "");
  EXPECT_ERROR(ErrorCode::data_source, "multiple of 3073", import_cifar10(o, {}));
  std::string bad = batch(0, 3);
  bad[2 * kRecord] = 10;
  write_all(o.source, bad);
  EXPECT_ERROR(ErrorCode::data_source, "record 2 has label 10", import_cifar10(o, {}));
  EXPECT_FALSE(fs::exists(o.output));
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_EQ(entry.path().filename().string().find(".partial"), std::string::npos) << entry.path();
  write_all(o.source, batch(0, 3));
  o = options();
  o.replace = false;
  import_cifar10(o, {});
  const std::string before = read_all(o.output);
  EXPECT_ERROR(ErrorCode::data_exists, "--force", import_cifar10(o, {}));
  ImportOptions unnamed = options();
  unnamed.output = "";
  EXPECT_ERROR(ErrorCode::usage, "the name of the file to write is empty", import_cifar10(unnamed, {}));
  EXPECT_EQ(read_all(o.output), before);
}

}  // namespace
}  // namespace lockstep::data
