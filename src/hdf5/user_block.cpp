#include "hdf5/user_block.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace lockstep::hdf5 {
namespace {

constexpr std::string_view kHdf5Magic{"\x89HDF\r\n\x1a\n", 8};

bool begins_with(std::span<const std::byte> head, std::string_view magic) {
  return head.size() >= magic.size() && std::memcmp(head.data(), magic.data(), magic.size()) == 0;
}

}  // namespace

FileKind kind_of(std::span<const std::byte> head) {
  // The longer ones first, since they all begin in the same way.
  if (begins_with(head, kImagesMagic)) return FileKind::images;
  if (begins_with(head, kTextMagic)) return FileKind::text;
  if (begins_with(head, kCheckpointMagic)) return FileKind::checkpoint;
  return begins_with(head, kHdf5Magic) ? FileKind::plain_hdf5 : FileKind::unknown;
}

void check_user_block(const std::string& path, std::span<const std::byte> hashed, const UserBlockFields& fields,
                      const UserBlockErrors& errors) {
  require(hash_bytes(hashed) == fields.stored_hash, errors.damaged,
          "{} is damaged in its user block (bytes 0 to {}): its checksum does not match", path, hashed.size() - 1);
  require(std::ranges::find(fields.known_versions, fields.version) != fields.known_versions.end(),
          errors.unknown_version, "{} has format version {}; this program reads version {}", path, fields.version,
          fmt::join(fields.known_versions, " and "));
  require(fields.file_bytes >= fields.recorded_bytes, errors.damaged, "{} is truncated: it has {} of {} bytes", path,
          fields.file_bytes, fields.recorded_bytes);
  require(fields.file_bytes == fields.recorded_bytes, errors.damaged,
          "{} is too long: it has {} bytes, but was written with {}", path, fields.file_bytes, fields.recorded_bytes);
}

}  // namespace lockstep::hdf5
