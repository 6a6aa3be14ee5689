// The positions of a data set's bytes in its file: contiguous, or in chunks of equal size at any positions. The last
// chunk is padded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lockstep::data {

/// A range of a file.
struct ByteRange {
  std::uint64_t offset = 0, size_bytes = 0;
  std::uint64_t end() const { return offset + size_bytes; }
  bool operator==(const ByteRange&) const = default;
};

struct StoredBytes {
  std::uint64_t size_bytes = 0;
  std::uint64_t chunk_bytes = 0;       // in the file; contiguous: size_bytes
  std::vector<std::uint64_t> offsets;  // of the chunks in the file; contiguous: one

  static StoredBytes contiguous(const ByteRange& range) { return {range.size_bytes, range.size_bytes, {range.offset}}; }
  /// Chunks that were written one after the other: the first at offset `first`, the second at `second`, and each
  /// further one `stride` bytes after the one before.
  static StoredBytes in_a_row(std::uint64_t size_bytes, std::uint64_t chunk_bytes, std::uint64_t first,
                              std::uint64_t second, std::uint64_t stride);

  static std::uint64_t n_chunks(std::uint64_t size_bytes, std::uint64_t chunk_bytes) {
    return size_bytes / chunk_bytes + (size_bytes % chunk_bytes != 0);
  }
  bool chunked() const { return chunk_bytes != size_bytes; }

  /// The position of byte `begin` of the data set, and how many of the next `n_bytes` are contiguous in the file.
  /// begin + n_bytes <= size_bytes.
  ByteRange contiguous_range(std::uint64_t begin, std::uint64_t n_bytes) const {
    std::uint64_t chunk = begin / chunk_bytes;
    const std::uint64_t inside = begin - chunk * chunk_bytes, offset = offsets[chunk] + inside;
    std::uint64_t n = chunk_bytes - inside;
    for (; n < n_bytes && offsets[chunk + 1] == offset + n; ++chunk) n += chunk_bytes;
    return {offset, std::min(n, n_bytes)};
  }
  bool operator==(const StoredBytes&) const = default;
};

inline StoredBytes StoredBytes::in_a_row(std::uint64_t size_bytes, std::uint64_t chunk_bytes, std::uint64_t first,
                                         std::uint64_t second, std::uint64_t stride) {
  StoredBytes out{size_bytes, chunk_bytes, std::vector<std::uint64_t>(n_chunks(size_bytes, chunk_bytes))};
  for (std::size_t i = 0; i < out.offsets.size(); ++i) out.offsets[i] = i == 0 ? first : second + (i - 1) * stride;
  return out;
}

}  // namespace lockstep::data
