// What the user blocks of Lockstep's HDF5 files have in common. HDF5, h5py and the HDF5 tools skip these first 4 KiB of
// a file (more where the data are aligned). Checkpoints (checkpoint/user_block.h) and data sets (data/user_block.h)
// have different fields there, but both begin with a magic number, store the length of the file and the format version,
// and carry an xxh3 of their own bytes, so that damage is detected before HDF5 parses the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::hdf5 {

inline constexpr std::uint64_t kUserBlockBytes = 4096;

inline constexpr std::string_view kCheckpointMagic{"LOCKSTEP", 8};
inline constexpr std::string_view kImagesMagic{"LOCKSTEP-IMAGES\0", 16};
inline constexpr std::string_view kTextMagic{"LOCKSTEP-TEXT\0\0\0", 16};

enum class FileKind { checkpoint, images, text, plain_hdf5, unknown };
/// The kind of a file according to its first bytes. plain_hdf5: an HDF5 file without a user block.
FileKind kind_of(std::span<const std::byte> head);

/// The fields that every user block has, and what they are compared with.
struct UserBlockFields {
  std::uint64_t stored_hash = 0;  // of `hashed`
  std::uint64_t version = 0;
  std::span<const std::uint64_t> known_versions;
  std::uint64_t recorded_bytes = 0, file_bytes = 0;  // length of the file: as stored, and its actual length
};
/// The codes of errors, which depend on the kind of file.
struct UserBlockErrors {
  ErrorCode damaged, unknown_version;
};
/// Checks the hash of the bytes `hashed`, then the version, then the length of the file. Throws for the first that is
/// wrong.
void check_user_block(const std::string& path, std::span<const std::byte> hashed, const UserBlockFields& fields,
                      const UserBlockErrors& errors);

}  // namespace lockstep::hdf5
