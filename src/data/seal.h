// The seal of an image set that import wrote: 4 KiB before HDF5's own data (in its "user block", which h5py and the
// HDF5 tools skip, and which is longer where data are aligned). It holds the length of the file, where images and
// labels lie, and the xxh3 of everything else, so that truncation and damaged metadata are seen before HDF5 parses a
// byte. Little-endian.
//   bytes 0..15 "LOCKSTEP-IMAGES\0" · u64 seal version · file bytes · images offset, bytes · labels offset, bytes ·
//   xxh3 of the bytes behind the block outside images and labels ·
//   version 2, images in chunks, the images' offset being the first one's: chunk bytes · offset of the second chunk ·
//   from it on, bytes from one chunk's beginning to the next's · 16 numbers of chunks, ascending, or 0: before these,
//   and before the second, there is metadata; what lies before the others is not in the xxh3 above ·
//   xxh3 of the block up to here · zeros
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/file.h"
#include "data/stored_bytes.h"

namespace lockstep::data {

inline constexpr std::uint64_t kSealBytes = 4096;

struct Seal {
  StoredBytes images;  // contiguous, or as StoredBytes::in_a_row() has them
  ByteRange labels;
};

/// Nothing when the file has no seal (made by another program). Throws data_truncated or data_damaged when the file
/// is not what was sealed.
std::optional<Seal> check_seal(const InputFile& file);
/// Computes and writes the seal of a closed file that begins with kSealBytes zero bytes.
void write_seal(const std::string& path, const Seal& seal);

/// xxh3 of a data set's bytes, as 16 hex digits are made from it by hash_text(). `progress` may be empty.
std::uint64_t hash_stored(const InputFile& file, const StoredBytes& stored, const std::string& what,
                          const std::function<void(std::uint64_t bytes)>& progress = {});
std::string hash_text(std::uint64_t hash);

}  // namespace lockstep::data
