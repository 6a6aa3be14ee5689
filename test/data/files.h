// Helpers of the data set tests: temporary folders, small image sets, and CIFAR-10 batches with known content.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/image_file.h"
#include "data/text_file.h"
#include "lockstep/error.h"
#include "test/support/sanitizers.h"

namespace lockstep::data {

/// A folder that the destructor removes with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-data-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// How often a test damages a file and opens it in a child. A fork takes a tenth of a second under the address
/// sanitizer.
inline int n_flips() { return test::has_address_sanitizer() ? 25 : 100; }

/// Byte i of a sample's image. It depends on the sample, so that a mix-up of samples is detected.
inline std::uint8_t test_byte(std::int64_t sample, std::size_t i) {
  return static_cast<std::uint8_t>((static_cast<std::size_t>(sample) * 131 + i * 7 + (i >> 8)) ^ 0x5a);
}
inline std::int32_t test_label(std::int64_t sample, int classes) {
  return static_cast<std::int32_t>(sample * 3 % classes);
}

inline std::vector<std::uint8_t> test_image(std::int64_t sample, std::size_t n_bytes) {
  std::vector<std::uint8_t> image(n_bytes);
  for (std::size_t i = 0; i < n_bytes; ++i) image[i] = test_byte(sample, i);
  return image;
}

struct TestSet {
  std::int64_t n_samples = 23;
  int height = 5, width = 4, channels = 3, classes = 7;
};

/// An image set, as import writes it, of test_byte() and test_label(); `labels` replaces the latter if it is passed.
inline void write_test_set(const std::string& path, const TestSet& set = {}, std::vector<std::int32_t> labels = {},
                           const Placement& placement = kDefaultPlacement) {
  ImageFileWriter writer(path, true, set.n_samples, set.height, set.width, set.channels, placement);
  const std::size_t image_bytes = static_cast<std::size_t>(set.height) * set.width * set.channels;
  for (std::int64_t i = 0; i < set.n_samples; ++i) {
    const std::int32_t label = labels.empty() ? test_label(i, set.classes) : labels[static_cast<std::size_t>(i)];
    writer.append(test_image(i, image_bytes), std::span(&label, 1));
  }
  ImageSetInfo info;
  info.split = "train";
  info.classes = set.classes;
  info.mean.assign(static_cast<std::size_t>(set.channels), 0.5f);
  info.stddev.assign(static_cast<std::size_t>(set.channels), 0.25f);
  for (int k = 0; k < set.classes; ++k) info.class_names.push_back("class " + std::to_string(k));
  writer.finish(info, "test");
}

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline void overwrite(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes) {
  write_at(open_file(path, O_WRONLY), path, bytes, offset);
}

/// Removes the user block of a file, which then counts as one of another program. Returns the bytes that were removed.
inline std::uint64_t remove_user_block(const std::string& path) {
  const std::string bytes = read_all(path);
  const std::size_t n = bytes.find("\x89HDF\r\n\x1a\n");
  write_all(path, bytes.substr(n));
  return n;
}
inline void move_back(ByteRange& range, std::uint64_t n_bytes) {
  if (range.size_bytes > 0) range.offset += n_bytes;
}
inline void move_back(ImageFile& layout, std::uint64_t n_bytes) {
  for (std::uint64_t& offset : layout.images.offsets) offset += n_bytes;
  move_back(layout.labels, n_bytes);
  if (!layout.encoded) return;
  move_back(layout.encoded->offsets, n_bytes);
  move_back(layout.encoded->sizes, n_bytes);
}
inline void move_back(TextFile& layout, std::uint64_t n_bytes) {
  for (ByteRange* range : {&layout.tokens, &layout.documents, &layout.tokenizer, &layout.answers, &layout.block_hashes})
    move_back(*range, n_bytes);
}

/// Opens the file with `open`, and once more without its user block, in a child process. Both layouts must be equal.
template <typename Open>
void expect_same_layout_from_child(const std::string& path, Open open) {
  const auto expected = open(InputFile(path));
  EXPECT_TRUE(expected.has_user_block);
  const std::uint64_t n_bytes = remove_user_block(path);
  auto found = open(InputFile(path));
  EXPECT_FALSE(found.has_user_block);
  found.has_user_block = true;
  move_back(found, n_bytes);
  EXPECT_TRUE(found == expected);
}

/// The code and text of the Error that `action` throws.
struct Thrown {
  bool thrown = false;
  ErrorCode code{};
  std::string text;
  bool contains(const std::string& part) const { return text.find(part) != std::string::npos; }
};
inline Thrown thrown_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return {true, error.code(), error.what()};
  }
  return {};
}

#define EXPECT_ERROR(expected_code, part, ...)                                                           \
  do {                                                                                                   \
    const ::lockstep::data::Thrown thrown = ::lockstep::data::thrown_by([&] { __VA_ARGS__; });           \
    ASSERT_TRUE(thrown.thrown) << "an Error was expected";                                               \
    EXPECT_EQ(entry(thrown.code).code, entry(expected_code).code) << thrown.text;                        \
    EXPECT_TRUE(thrown.contains(part)) << "'" << thrown.text << "' does not contain '" << (part) << "'"; \
  } while (false)

}  // namespace lockstep::data
