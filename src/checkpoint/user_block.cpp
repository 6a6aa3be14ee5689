#include "checkpoint/user_block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian and written without swapping");

constexpr std::size_t kOwnHashAt = kUserBlockBytes - sizeof(std::uint64_t);
constexpr std::size_t kMaxListed = (kOwnHashAt - sizeof(UserBlockFields)) / sizeof(std::uint64_t);

using Block = std::array<std::byte, kUserBlockBytes>;

std::uint64_t own_hash(const Block& block) { return hash_bytes(std::span(block).first(kOwnHashAt)); }

}  // namespace

std::array<std::byte, kUserBlockBytes> encode(const UserBlock& block) {
  UserBlockFields fields = block;
  std::ranges::copy(hdf5::kCheckpointMagic, fields.magic.begin());
  fields.n_listed = block.block_hashes.size() <= kMaxListed ? block.block_hashes.size() : 0;
  Block out{};
  std::memcpy(out.data(), &fields, sizeof fields);
  std::ranges::copy(std::as_bytes(std::span(block.block_hashes).first(fields.n_listed)), out.begin() + sizeof fields);
  const std::uint64_t hash = own_hash(out);
  std::memcpy(out.data() + kOwnHashAt, &hash, sizeof hash);
  return out;
}

UserBlock read_user_block(const Descriptor& file, const std::string& path) {
  const std::uint64_t length = size_bytes(file, path);
  require(length > 0, ErrorCode::checkpoint_damaged, "{} is empty", path);

  Block block{};
  const auto head = std::span(block).first(std::min(length, kUserBlockBytes));
  read_at(file, path, head, 0, ErrorCode::checkpoint_damaged);
  const hdf5::FileKind kind = hdf5::kind_of(head);
  require(kind != hdf5::FileKind::images && kind != hdf5::FileKind::text, ErrorCode::checkpoint_format,
          "{} is a data set of {}, not a checkpoint", path, kind == hdf5::FileKind::text ? "text" : "images");
  require(kind == hdf5::FileKind::checkpoint, ErrorCode::checkpoint_format,
          "{} is not a checkpoint of Lockstep: it does not begin with \"{}\"{}", path, hdf5::kCheckpointMagic,
          kind == hdf5::FileKind::plain_hdf5 ? "; it is an HDF5 file of another program" : "");
  require(length >= kUserBlockBytes, ErrorCode::checkpoint_damaged,
          "{} is truncated: it has {} bytes, but its user block alone has {}", path, length, kUserBlockBytes);

  UserBlock out;
  std::memcpy(static_cast<UserBlockFields*>(&out), block.data(), sizeof(UserBlockFields));
  std::uint64_t stored_hash = 0;
  std::memcpy(&stored_hash, block.data() + kOwnHashAt, sizeof stored_hash);
  constexpr std::array<std::uint64_t, 1> kKnownVersions{kFormatVersion};
  hdf5::check_user_block(path, std::span(block).first(kOwnHashAt),
                         {.stored_hash = stored_hash,
                          .version = out.version,
                          .known_versions = kKnownVersions,
                          .recorded_bytes = out.file_bytes,
                          .file_bytes = length},
                         {.damaged = ErrorCode::checkpoint_damaged, .unknown_version = ErrorCode::checkpoint_format});
  require(out.block_bytes == kUserBlockBytes && out.hash_block_bytes == kHashBlockBytes, ErrorCode::checkpoint_damaged,
          "{} is damaged: its block sizes are not those of format version {}", path, kFormatVersion);
  const bool sizes_fit =
      out.metadata_end <= length &&
      (out.n_listed == 0 || (out.n_listed <= kMaxListed && out.n_listed == n_hash_blocks(length - kUserBlockBytes)));
  require(sizes_fit, ErrorCode::checkpoint_damaged,
          "{} is damaged: the sizes in its user block exceed the size of the file", path);
  out.block_hashes.resize(out.n_listed);
  const auto listed = std::as_writable_bytes(std::span(out.block_hashes));
  std::copy_n(block.begin() + sizeof(UserBlockFields), listed.size(), listed.begin());
  return out;
}

std::uint64_t hash_list(std::span<const std::uint64_t> hashes) { return hash_bytes(std::as_bytes(hashes)); }

std::uint64_t n_hash_blocks(std::uint64_t bytes) { return bytes / kHashBlockBytes + (bytes % kHashBlockBytes != 0); }

std::uint64_t hash_range(const Descriptor& file, const std::string& path, std::uint64_t begin, std::uint64_t end,
                         std::vector<std::byte>& buffer) {
  buffer.resize(std::max<std::size_t>(buffer.size(), end - begin));
  const auto bytes = std::span(buffer).first(end - begin);
  read_at(file, path, bytes, begin, ErrorCode::checkpoint_damaged);
  return hash_bytes(bytes);
}

std::uint64_t digest_range(const Descriptor& file, const std::string& path, std::uint64_t begin, std::uint64_t end,
                           std::vector<std::byte>& buffer) {
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t at = begin; at < end; at += kHashBlockBytes)
    hashes.push_back(hash_range(file, path, at, std::min(at + kHashBlockBytes, end), buffer));
  return hash_list(hashes);
}

std::uint64_t digest_bytes(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t at = 0; at < bytes.size(); at += kHashBlockBytes)
    hashes.push_back(hash_bytes(bytes.subspan(at, std::min<std::size_t>(kHashBlockBytes, bytes.size() - at))));
  return hash_list(hashes);
}

}  // namespace lockstep::checkpoint
