// The user block of a checkpoint: the 4 KiB before its HDF5 part, little-endian, and the hashes in it (xxh3, 64 bits).
// hdf5/user_block.h has what it shares with data sets.
//
//   byte     what
//   0        "LOCKSTEP"
//   8        u32 format version, u32 bytes of this block (4096)
//   16       u64 length of the file
//   24       u64 bytes of a hashed block (16 MiB)
//   32       u64 digest: the hash of the list of the hashes of the file's blocks after this one
//   40       u64 end of the HDF5 metadata: bytes 4096 to here are metadata, all after are tensors; 0: unknown
//   48       u64 hash of the metadata
//   56       u64 number of block hashes listed from byte 64 on; 0: they do not fit (files above 8 GB)
//   64       u64 hash of each block
//   4088     u64 hash of bytes 0 to 4087
//
// The digest alone decides whether the file is complete and sound. The list and the hash of the metadata allow `verify`
// to name what is damaged, and allow the step to be read from a large file without hashing all of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "hdf5/user_block.h"

namespace lockstep::checkpoint {

using hdf5::kUserBlockBytes;
inline constexpr std::uint64_t kHashBlockBytes = std::uint64_t{16} << 20;

/// The fields before the list of block hashes, in file order.
struct UserBlockFields {
  std::array<char, 8> magic{};
  std::uint32_t version = 0, block_bytes = kUserBlockBytes;
  std::uint64_t file_bytes = 0, hash_block_bytes = kHashBlockBytes;
  std::uint64_t digest = 0;
  std::uint64_t metadata_end = 0, metadata_hash = 0;
  std::uint64_t n_listed = 0;
};
static_assert(sizeof(UserBlockFields) == 64, "the fields have no padding");
struct UserBlock : UserBlockFields {
  std::vector<std::uint64_t> block_hashes;  // empty if they do not fit
};

std::array<std::byte, kUserBlockBytes> encode(const UserBlock& block);
/// Checks the magic number, the block's own hash, the version and the file's length, in this order. Throws for the
/// first that is wrong.
UserBlock read_user_block(const Descriptor& file, const std::string& path);

std::uint64_t hash_list(std::span<const std::uint64_t> hashes);
/// The number of 16 MiB blocks (the last one may be shorter) in this many bytes.
std::uint64_t n_hash_blocks(std::uint64_t bytes);
/// The hash of bytes [begin, end) of the file, at most 16 MiB; `buffer` is reused.
std::uint64_t hash_range(const Descriptor& file, const std::string& path, std::uint64_t begin, std::uint64_t end,
                         std::vector<std::byte>& buffer);
/// The digest of bytes [begin, end), of a file or of a tensor: the hash of the list of the hashes of its 16 MiB blocks.
std::uint64_t digest_range(const Descriptor& file, const std::string& path, std::uint64_t begin, std::uint64_t end,
                           std::vector<std::byte>& buffer);
std::uint64_t digest_bytes(std::span<const std::byte> bytes);

}  // namespace lockstep::checkpoint
