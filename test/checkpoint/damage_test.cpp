// Files that are incomplete, of another program or of another format: verify() and load() always reject them and
// describe what is wrong.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/reader.h"
#include "checkpoint/user_block.h"
#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    save_alone(path_, small_model(), small_state());
    good_ = bytes_of_file(path_);
    Reader reader(path_);
    metadata_end_ = reader.header().metadata_end;
    ASSERT_GT(metadata_end_, kUserBlockBytes);
    ASSERT_LT(metadata_end_, good_.size());
  }

  /// verify() and load() both reject the file; returns the message.
  std::string refused(const std::string& bytes) {
    write_file(path_, bytes);
    const Verdict verdict = verify(path_);
    EXPECT_FALSE(verdict.good) << verdict.sentence;
    // If several tensors are damaged, load() names the first that it reads.
    const std::string of_load = error_of([&] { load(path_, targets_); });
    EXPECT_EQ(of_load, verdict.sentence.substr(0, of_load.size()));
    EXPECT_NE(of_load, "");
    EXPECT_NE(error_of([&] { load_all(path_); }), "");
    EXPECT_NE(verdict.sentence.find(path_), std::string::npos) << verdict.sentence;
    return verdict.sentence;
  }
  std::string flipped(std::size_t byte, int bit) const {
    std::string bytes = good_;
    bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
    return bytes;
  }

  static std::vector<TensorTarget> all_targets() {
    std::vector<TensorTarget> targets;
    for (const TensorSource& tensor : small_model()) targets.push_back({tensor.path, tensor.shape, [](auto) {}});
    std::ranges::sort(targets, {}, &TensorTarget::path);
    return targets;
  }

  std::vector<TensorTarget> targets_ = all_targets();
  ScratchDirectory scratch_;
  std::string path_ = scratch_.file("step-00001200.h5");
  std::string good_;
  std::uint64_t metadata_end_ = 0;
};

TEST_F(Damage, AFlippedBitAnywhereIsDetected) {
  std::size_t bit = 0;
  for (std::size_t byte = 0; byte < good_.size(); byte += 509) {
    const std::string sentence = refused(flipped(byte, static_cast<int>(bit++ % 8)));
    if (byte >= 8 && byte < kUserBlockBytes) {
      EXPECT_NE(sentence.find("damaged in its user block"), std::string::npos) << byte << ": " << sentence;
    } else if (byte >= kUserBlockBytes && byte < metadata_end_) {
      EXPECT_NE(sentence.find("damaged in its HDF5 metadata"), std::string::npos) << byte << ": " << sentence;
    } else if (byte >= metadata_end_) {
      EXPECT_NE(sentence.find("is damaged in /"), std::string::npos) << byte << ": " << sentence;
    }
  }
}

TEST_F(Damage, EachBitOfTheUserBlocksFieldsIsChecked) {
  for (std::size_t byte = 0; byte < 80; ++byte)
    for (int bit = 0; bit < 8; ++bit) refused(flipped(byte, bit));
}

TEST_F(Damage, TheDamagedTensorsAreNamed) {
  Reader reader(path_);
  std::string two = good_;
  for (const char* name : {"/parameters/fc.weight", "/statistics/bn1.running_var"}) {
    const TensorEntry* tensor = reader.find(name);
    ASSERT_NE(tensor, nullptr);
    const std::size_t last = tensor->offset + tensor->size_bytes() - 1;
    EXPECT_EQ(refused(flipped(last, 3)),
              fmt::format("{} is damaged in {} (bytes {} to {})", path_, name, tensor->offset, last));
    two[last] = static_cast<char>(two[last] ^ 1);
  }
  const std::string sentence = refused(two);
  EXPECT_NE(sentence.find("/parameters/fc.weight"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("/statistics/bn1.running_var"), std::string::npos) << sentence;
}

TEST_F(Damage, TruncatedEmptyAndLongFilesAreReported) {
  EXPECT_EQ(refused(""), path_ + " is empty");
  for (const std::size_t size :
       {std::size_t{9}, std::size_t{4095}, std::size_t{4096}, std::size_t{5000}, good_.size() / 2, good_.size() - 1}) {
    const std::string sentence = refused(good_.substr(0, size));
    EXPECT_NE(sentence.find(" is truncated: "), std::string::npos) << sentence;
  }
  EXPECT_NE(refused(good_ + "x").find(" is too long: "), std::string::npos);
  EXPECT_NE(refused(std::string(good_.size(), '\0')).find("does not begin with \"LOCKSTEP\""), std::string::npos);
}

TEST_F(Damage, ForeignFilesAreReported) {
  EXPECT_NE(refused("PK\3\4 a zip file").find("is not a checkpoint of Lockstep"), std::string::npos);
  // A file of h5py or another program: HDF5 from the first byte on.
  EXPECT_NE(refused(good_.substr(kUserBlockBytes)).find("HDF5 file of another program"), std::string::npos);
}

TEST_F(Damage, AFutureFormatIsNotReportedAsDamage) {
  std::string bytes = good_;
  bytes[8] = kFormatVersion + 1;
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(bytes)).first(kUserBlockBytes - 8));
  std::memcpy(bytes.data() + kUserBlockBytes - 8, &hash, sizeof hash);
  EXPECT_EQ(refused(bytes), fmt::format("{} has format version {}; this program reads version {}", path_,
                                        kFormatVersion + 1, kFormatVersion));
}

TEST(UserBlock, OmitsTheHashesOfALargeFile) {
  ScratchDirectory scratch;
  UserBlock header;
  header.version = kFormatVersion;
  header.digest = 42;
  for (const std::uint64_t n_blocks : {503u, 504u}) {  // the largest number that fits, and one more
    header.file_bytes = kUserBlockBytes + n_blocks * kHashBlockBytes;
    header.block_hashes.assign(n_blocks, 7);
    const auto bytes = encode(header);
    const std::string path = scratch.file("sparse.h5");
    write_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    std::filesystem::resize_file(path, header.file_bytes);
    const UserBlock found = read_user_block(open_regular_file(path), path);
    EXPECT_EQ(found.digest, 42u);
    EXPECT_EQ(found.block_hashes.size(), n_blocks == 503 ? 503u : 0u);
  }
}

TEST_F(Damage, ADamagedBlockOfALargeFileIsFound) {
  save_alone(path_, small_model(true), small_state());
  targets_.push_back({"/parameters/embedding", {1300, 7001}, [](auto) {}});
  good_ = bytes_of_file(path_);
  Reader reader(path_);
  EXPECT_EQ(reader.header().block_hashes.size(), 3u);
  const TensorEntry* tensor = reader.find("/parameters/embedding");
  ASSERT_NE(tensor, nullptr);
  const std::string sentence = refused(flipped(tensor->offset + (20u << 20), 0));
  EXPECT_NE(sentence.find("is damaged in /parameters/embedding"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace lockstep::checkpoint::test
