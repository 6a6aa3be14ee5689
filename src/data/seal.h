// The seal of an image set that import wrote: 4 KiB before HDF5's own data (in its "user block", which h5py and the
// HDF5 tools skip, and which is longer where data are aligned). It holds the length of the file, where images and
// labels lie, and the xxh3 of everything else, so that truncation and damaged metadata are seen before HDF5 parses a
// byte. Little-endian.
//   bytes 0..15 "LOCKSTEP-IMAGES\0" · u64 seal version · file bytes · images offset, bytes · labels offset, bytes ·
//   xxh3 of the bytes behind the block outside images and labels · xxh3 of the block up to here · zeros
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/file.h"

namespace lockstep::data {

inline constexpr std::uint64_t kSealBytes = 4096;

struct ByteRange {
  std::uint64_t offset = 0, size_bytes = 0;
  std::uint64_t end() const { return offset + size_bytes; }
  bool operator==(const ByteRange&) const = default;
};

struct Seal {
  ByteRange images, labels;
};

/// Nothing when the file has no seal (made by another program). Throws data_truncated or data_damaged when the file
/// is not what was sealed.
std::optional<Seal> check_seal(const InputFile& file);
/// Computes and writes the seal of a closed file that begins with kSealBytes zero bytes.
void write_seal(const std::string& path, const Seal& seal);

/// xxh3 of a range of a file, as 16 hex digits are made from it by hash_text(). `progress` may be empty.
std::uint64_t hash_range(const InputFile& file, const ByteRange& range, const std::string& what,
                         const std::function<void(std::uint64_t bytes)>& progress = {});
std::string hash_text(std::uint64_t hash);

}  // namespace lockstep::data
