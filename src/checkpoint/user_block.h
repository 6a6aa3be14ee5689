// The 4 KiB before the HDF5 part of a checkpoint, little-endian, and the hashes that it rests on (xxh3, 64 bits).
//
//   byte     what
//   0        "LOCKSTEP"
//   8        u32 format version, u32 bytes of this block (4096)
//   16       u64 length of the file
//   24       u64 bytes of a hashed block (16 MiB)
//   32       u64 digest: the hash of the list of the hashes of the file's blocks after this one
//   40       u64 end of the HDF5 metadata: bytes 4096 to here are metadata and all behind is tensors; 0: not known
//   48       u64 hash of the metadata
//   56       u64 number of block hashes listed from byte 64 on; 0: they do not fit (files above 8 GB)
//   64       u64 hash of each block
//   4088     u64 hash of bytes 0 to 4087
//
// The digest alone says whether the file is whole; the list and the metadata's hash let `verify` name what is damaged,
// and let the step be read from a large file without hashing all of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file.h"

namespace lockstep::checkpoint {

inline constexpr std::uint64_t kUserBlockBytes = 4096;
inline constexpr std::uint64_t kHashBlockBytes = std::uint64_t{16} << 20;

struct UserBlock {
  std::uint32_t version = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t digest = 0;
  std::uint64_t metadata_end = 0;
  std::uint64_t metadata_hash = 0;
  std::vector<std::uint64_t> block_hashes;  // empty where they do not fit
};

std::array<std::byte, kUserBlockBytes> encode(const UserBlock& block);
/// Checks mark, own hash, version and the file's length, in this order; throws with the first that does not hold.
UserBlock read_user_block(const Descriptor& file, const std::string& path);

std::uint64_t hash_bytes(std::span<const std::byte> bytes);
std::uint64_t hash_list(std::span<const std::uint64_t> hashes);
/// How many pieces of 16 MiB (the last one shorter) so many bytes are.
std::uint64_t n_hash_blocks(std::uint64_t bytes);
/// The hash of bytes [begin, end) of the file, at most 16 MiB; `buffer` is reused.
std::uint64_t hash_range(const Descriptor& file, const std::string& path, std::uint64_t begin, std::uint64_t end,
                         std::vector<std::byte>& buffer);
/// Of bytes [begin, end): the hash of the list of the hashes of its 16 MiB pieces, as of a file and of a tensor.
std::uint64_t digest_range(const Descriptor& file, const std::string& path, std::uint64_t begin, std::uint64_t end,
                           std::vector<std::byte>& buffer);
std::uint64_t digest_bytes(std::span<const std::byte> bytes);

}  // namespace lockstep::checkpoint
