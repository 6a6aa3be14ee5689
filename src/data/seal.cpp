#include "data/seal.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr char kMagic[16] = "LOCKSTEP-IMAGES";
constexpr std::uint64_t kSealVersion = 1;
constexpr std::uint64_t kMaxMetadataBytes = 1u << 30;  // 16 bytes a JPEG image are among it
constexpr std::size_t kPieceBytes = 4u << 20;

/// The block's fields, in the order of the file.
struct Block {
  char magic[16];
  std::uint64_t version, file_bytes;
  std::uint64_t images_offset, images_bytes, labels_offset, labels_bytes;
  std::uint64_t metadata_xxh3, block_xxh3;
};
static_assert(sizeof(Block) == 80 && offsetof(Block, block_xxh3) == 72, "the block has no padding");

struct StateFree {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

/// Hashes ranges of a file one after the other as if they were one.
class RangeHash {
 public:
  RangeHash() : state_(XXH3_createState()) {
    require(state_ != nullptr, ErrorCode::out_of_memory, "no memory for a checksum");
    XXH3_64bits_reset(state_.get());
  }
  void add(const InputFile& file, const ByteRange& range, const std::string& what,
           const std::function<void(std::uint64_t)>& progress) {
    buffer_.resize(std::min<std::uint64_t>(kPieceBytes, range.size_bytes));
    for (std::uint64_t done = 0; done < range.size_bytes;) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, range.size_bytes - done));
      file.read(range.offset + done, {buffer_.data(), n}, what);
      XXH3_64bits_update(state_.get(), buffer_.data(), n);
      done += n;
      if (progress) progress(n);
    }
  }
  std::uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, StateFree> state_;
  std::vector<std::byte> buffer_;
};

/// True when both ranges lie behind the block, inside the file, and apart.
bool plausible(const Seal& seal, std::uint64_t file_bytes) {
  for (const ByteRange& r : {seal.images, seal.labels})
    if (r.offset < kSealBytes || r.offset > file_bytes || r.size_bytes > file_bytes - r.offset) return false;
  return seal.images.end() <= seal.labels.offset || seal.labels.end() <= seal.images.offset;
}

std::uint64_t hash_metadata(const InputFile& file, const Seal& seal) {
  const bool images_first = seal.images.offset < seal.labels.offset;
  const ByteRange first = images_first ? seal.images : seal.labels;
  const ByteRange second = images_first ? seal.labels : seal.images;
  const ByteRange parts[3] = {{kSealBytes, first.offset - kSealBytes},
                              {first.end(), second.offset - first.end()},
                              {second.end(), file.size_bytes() - second.end()}};
  std::uint64_t total = 0;
  for (const ByteRange& part : parts) total += part.size_bytes;
  require(total <= kMaxMetadataBytes, ErrorCode::data_damaged,
          "{} has {} bytes that are neither images nor labels, more than an image set can have", file.path(), total);
  RangeHash hash;
  for (const ByteRange& part : parts) hash.add(file, part, "its metadata", {});
  return hash.digest();
}

}  // namespace

std::uint64_t hash_range(const InputFile& file, const ByteRange& range, const std::string& what,
                         const std::function<void(std::uint64_t)>& progress) {
  RangeHash hash;
  hash.add(file, range, what, progress);
  return hash.digest();
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<Seal> check_seal(const InputFile& file) {
  if (file.size_bytes() < sizeof(Block)) return std::nullopt;
  Block block;
  file.read(0, std::as_writable_bytes(std::span(&block, 1)), "its first block");
  if (std::memcmp(block.magic, kMagic, sizeof kMagic) != 0) return std::nullopt;
  const std::uint64_t block_hash = XXH3_64bits(&block, offsetof(Block, block_xxh3));
  require(block_hash == block.block_xxh3, ErrorCode::data_damaged, "{}: the first block of the file is damaged",
          file.path());
  require(block.version == kSealVersion, ErrorCode::data_format,
          "{} was written in version {} of the format; this program reads version {}", file.path(), block.version,
          kSealVersion);
  require(file.size_bytes() >= block.file_bytes, ErrorCode::data_truncated, "{} is cut short: it has {} of {} bytes",
          file.path(), file.size_bytes(), block.file_bytes);
  require(file.size_bytes() == block.file_bytes, ErrorCode::data_damaged, "{} has {} bytes, but was written with {}",
          file.path(), file.size_bytes(), block.file_bytes);
  const Seal seal{{block.images_offset, block.images_bytes}, {block.labels_offset, block.labels_bytes}};
  require(plausible(seal, file.size_bytes()), ErrorCode::data_damaged, "{}: the first block of the file is damaged",
          file.path());
  require(hash_metadata(file, seal) == block.metadata_xxh3, ErrorCode::data_damaged,
          "{}: the metadata of the file is damaged (its checksum differs), or another program changed it", file.path());
  return seal;
}

void write_seal(const std::string& path, const Seal& seal) {
  const InputFile file(path);
  require(plausible(seal, file.size_bytes()), ErrorCode::internal, "{}: HDF5 laid it out unexpectedly", path);
  Block block{};
  std::memcpy(block.magic, kMagic, sizeof kMagic);
  block.version = kSealVersion;
  block.file_bytes = file.size_bytes();
  block.images_offset = seal.images.offset;
  block.images_bytes = seal.images.size_bytes;
  block.labels_offset = seal.labels.offset;
  block.labels_bytes = seal.labels.size_bytes;
  block.metadata_xxh3 = hash_metadata(file, seal);
  block.block_xxh3 = XXH3_64bits(&block, offsetof(Block, block_xxh3));
  write_at(path, 0, std::as_bytes(std::span(&block, 1)));
}

}  // namespace lockstep::data
