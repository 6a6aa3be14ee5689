// The user block of a data set that import wrote. It stores the length of the file, the positions of its two large
// parts (images and labels, or tokens and documents), and the xxh3 of everything else, so that truncated files and
// damaged metadata are detected before HDF5 parses them. hdf5/user_block.h has the fields in common with checkpoints.
// Little-endian.
//
//   bytes 0 to 15: "LOCKSTEP-IMAGES\0" or "LOCKSTEP-TEXT\0\0\0"
//   u64 version, u64 length of the file
//   u64 offset and bytes of the images or tokens, u64 offset and bytes of the labels or documents
//   u64 xxh3 of the bytes after the user block, except these two
//   version 2 (images in chunks; the offset of the images is that of the first chunk):
//     u64 bytes of a chunk, u64 offset of the second chunk, u64 distance between the beginnings of two later chunks
//     16 x u64 numbers of chunks, ascending, or 0: there is metadata before these chunks, and before the second one;
//     bytes between other chunks are not part of the xxh3 above
//   u64 xxh3 of all bytes before; the rest is zero
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/hash.h"
#include "data/file.h"
#include "hdf5/user_block.h"

namespace lockstep::data {

struct UserBlock {
  StoredBytes samples;  // images or tokens: contiguous, or as StoredBytes::in_a_row() describes them
  ByteRange index;      // labels or documents
  hdf5::FileKind kind = hdf5::FileKind::images;
};

/// The names of the two data sets that the user block locates.
struct PartNames {
  const char *samples, *index;
};
inline PartNames part_names(hdf5::FileKind kind) {
  return kind == hdf5::FileKind::text ? PartNames{"tokens", "documents"} : PartNames{"images", "labels"};
}

/// No value if the file has no user block of a data set, since another program wrote it. Throws data_damaged if
/// the file differs from what its user block states.
std::optional<UserBlock> read_user_block(const InputFile& file);
/// Computes and writes the user block of a closed file that begins with hdf5::kUserBlockBytes zero bytes.
void write_user_block(const std::string& path, const UserBlock& block);

/// xxh3 of the bytes of a data set. `progress` may be empty.
std::uint64_t hash_stored(const InputFile& file, const StoredBytes& stored, const std::string& what,
                          const std::function<void(std::uint64_t bytes)>& progress = {});

}  // namespace lockstep::data
