// Shared by the fuzz targets. FUZZ_TARGET(reader) begins the function that reads one input. `make fuzz` links it with
// libFuzzer; built like the other tests, it is the test Corpus.reader, which runs every file of the corpus.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/error.h"

#ifndef LOCKSTEP_FUZZ
#include <gtest/gtest.h>
#endif

namespace lockstep::fuzz {

/// Takes values from the start of the input, and zeros when it is used up, so that every input is valid.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}
  template <typename T>
  T take() {
    T value{};
    const std::size_t n = std::min(sizeof value, rest_.size());
    if (n > 0) std::memcpy(&value, rest_.data(), n);
    rest_ = rest_.subspan(n);
    return value;
  }
  std::uint8_t below(std::uint8_t n) { return static_cast<std::uint8_t>(take<std::uint8_t>() % n); }
  /// Up to `most` bytes; their number comes first.
  std::string text(std::uint8_t most) {
    const std::size_t requested = below(static_cast<std::uint8_t>(most + 1));  // takes a byte from rest_
    const std::size_t n = std::min(requested, rest_.size());
    std::string out(reinterpret_cast<const char*>(rest_.data()), n);
    rest_ = rest_.subspan(n);
    return out;
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::uint8_t> rest_;
};

/// A file, in memory if there is /dev/shm. It is rewritten for each input and removed at the end.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& suffix) {
    const std::string folder = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    path_ = folder + "/lockstep-fuzz-" + std::to_string(::getpid()) + suffix;
  }
  ~ScratchFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }
  void write(std::string_view bytes) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }

 private:
  std::string path_;
};

/// A directory, which is removed at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& suffix) : name_(suffix), path_(name_.path()) {
    std::filesystem::create_directory(path_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_ + "/" + name); }

 private:
  ScratchFile name_;
  std::string path_;
};

/// The text up to the next 0, which is dropped.
inline std::string_view take_text(std::string_view& input) {
  const std::string_view text = input.substr(0, input.find('\0'));
  input.remove_prefix(std::min(text.size() + 1, input.size()));
  return text;
}

/// A .safetensors file; its first bytes are the length of the header, which a fuzzer does not find.
inline std::string safetensors_of(std::string_view header, std::string_view values) {
  const std::uint64_t header_bytes = header.size();
  std::string file(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  return file.append(header).append(values);
}

/// `what` may succeed or throw an Error that describes what is wrong with the file. Anything else is a finding,
/// including an internal Error.
template <typename What>
void no_crash(What what) {
  try {
    what();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::internal) return;
    std::fprintf(stderr, "an internal error: %s\n", error.what());
    std::abort();
  }
}

}  // namespace lockstep::fuzz

#ifdef LOCKSTEP_FUZZ
#define FUZZ_TARGET(reader) extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
#else
namespace lockstep::fuzz {

inline void replay_corpus(const std::string& folder, int (*target)(const std::uint8_t* data, std::size_t size)) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  ASSERT_GE(files.size(), 5u);
  std::ranges::sort(files);
  for (const auto& file : files) {
    std::fprintf(stderr, "%s\n", file.c_str());  // if the program ends here, the last line names the file
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(target(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), 0);
  }
}

}  // namespace lockstep::fuzz

#define FUZZ_TARGET(reader)                                                                           \
  static int read_##reader(const std::uint8_t* data, std::size_t size);                               \
  TEST(Corpus, reader) { lockstep::fuzz::replay_corpus("test/fuzz/corpus/" #reader, read_##reader); } \
  static int read_##reader(const std::uint8_t* data, std::size_t size)
#endif
