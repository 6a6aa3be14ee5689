// Checksums of files: xxh3 with 64 bits, of bytes in memory or of bytes that arrive one range after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

std::uint64_t hash_bytes(std::span<const std::byte> bytes);
/// 16 hex digits.
std::string hash_text(std::uint64_t hash);

/// digest() is the hash of all bytes that were given to update(), as if they were contiguous.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  void update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
