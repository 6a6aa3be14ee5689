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
constexpr std::uint64_t kContiguousVersion = 1, kChunkedVersion = 2;
constexpr std::uint64_t kMaxMetadataBytes = 1u << 30;  // 16 bytes a JPEG image are among it
constexpr std::size_t kPieceBytes = 4u << 20;
constexpr std::size_t kMaxBreaks = 16;

/// The block's fields, in the order of the file; its own xxh3 follows.
struct Block {
  char magic[16];
  std::uint64_t version, file_bytes;
  std::uint64_t images_offset, images_bytes, labels_offset, labels_bytes;
  std::uint64_t metadata_xxh3;
  // kChunkedVersion
  std::uint64_t chunk_bytes, second_offset, stride;
  std::array<std::uint64_t, kMaxBreaks> breaks;
};
static_assert(sizeof(Block) == 224 && offsetof(Block, chunk_bytes) == 72, "the block has no padding");

/// Where the xxh3 of the block lies, and what it is of.
std::size_t fields_bytes(std::uint64_t version) {
  return version == kChunkedVersion ? sizeof(Block) : offsetof(Block, chunk_bytes);
}

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

const std::uint64_t* breaks_end(const Block& block) {
  return std::ranges::find(block.breaks.begin(), block.breaks.end(), 0u);
}

/// Where images and labels lie, in the order of the file. The first chunk is one piece, since HDF5 puts the index of
/// the chunks behind it, and so are those up to the next break.
std::vector<ByteRange> data_ranges(const Block& block) {
  std::vector<ByteRange> ranges{{block.labels_offset, block.labels_bytes}, {block.images_offset, block.images_bytes}};
  if (block.version == kChunkedVersion) {
    const std::uint64_t n = StoredBytes::n_chunks(block.images_bytes, block.chunk_bytes);
    ranges[1].size_bytes = block.chunk_bytes;
    for (std::uint64_t first = 1; first < n;) {
      const auto next = std::ranges::upper_bound(block.breaks.begin(), breaks_end(block), first);
      const std::uint64_t end = next == breaks_end(block) ? n : *next;
      ranges.push_back(
          {block.second_offset + (first - 1) * block.stride, (end - 1 - first) * block.stride + block.chunk_bytes});
      first = end;
    }
  }
  std::ranges::sort(ranges, {}, &ByteRange::offset);
  return ranges;
}

/// True when these lie behind the block, inside the file, and apart. No sum or product of the file's numbers overflows.
bool plausible(const Block& block) {
  const std::uint64_t file_bytes = block.file_bytes;
  if (block.version == kChunkedVersion) {
    if (block.chunk_bytes == 0 || block.chunk_bytes > file_bytes) return false;
    const std::uint64_t n = StoredBytes::n_chunks(block.images_bytes, block.chunk_bytes);
    if (n < 2 || block.stride < block.chunk_bytes || n > file_bytes / block.chunk_bytes ||
        n - 1 > file_bytes / block.stride + 1)
      return false;
    for (const std::uint64_t* b = block.breaks.begin(); b != breaks_end(block); ++b)
      if (*b < 2 || *b >= n || (b != block.breaks.begin() && *b <= b[-1])) return false;
  }
  std::uint64_t end = kSealBytes;
  for (const ByteRange& r : data_ranges(block)) {
    if (r.offset < end || r.offset > file_bytes || r.size_bytes > file_bytes - r.offset) return false;
    end = r.end();
  }
  return true;
}

std::uint64_t hash_metadata(const InputFile& file, const Block& block) {
  std::vector<ByteRange> parts;
  std::uint64_t end = kSealBytes;
  for (const ByteRange& r : data_ranges(block)) {
    parts.push_back({end, r.offset - end});
    end = r.end();
  }
  parts.push_back({end, file.size_bytes() - end});
  std::uint64_t total = 0;
  for (const ByteRange& part : parts) total += part.size_bytes;
  require(total <= kMaxMetadataBytes, ErrorCode::data_damaged,
          "{} has {} bytes that are neither images nor labels, more than an image set can have", file.path(), total);
  RangeHash hash;
  for (const ByteRange& part : parts) hash.add(file, part, "its metadata", {});
  return hash.digest();
}

/// The chunks from the third on before which the file has something else: alignment leaves room there, and HDF5 may put
/// metadata into it. What is all zeros is nothing.
std::array<std::uint64_t, kMaxBreaks> find_breaks(const InputFile& file, const StoredBytes& images) {
  std::array<std::uint64_t, kMaxBreaks> breaks{};
  std::size_t n_breaks = 0;
  std::vector<std::byte> gap;
  for (std::size_t i = 2; i < images.offsets.size(); ++i) {
    const std::uint64_t end = images.offsets[i - 1] + images.chunk_bytes;
    gap.resize(images.offsets[i] - end);
    file.read(end, gap, "what lies between its images");
    if (std::ranges::all_of(gap, [](std::byte b) { return b == std::byte{0}; })) continue;
    require(n_breaks < kMaxBreaks, ErrorCode::library,
            "{}: this HDF5 puts metadata between more than {} of the chunks; --chunk 0 makes none", file.path(),
            kMaxBreaks);
    breaks[n_breaks++] = i;
  }
  return breaks;
}

}  // namespace

std::uint64_t hash_stored(const InputFile& file, const StoredBytes& stored, const std::string& what,
                          const std::function<void(std::uint64_t)>& progress) {
  RangeHash hash;
  for (std::uint64_t done = 0; done < stored.size_bytes;) {
    const ByteRange piece = stored.piece(done, stored.size_bytes - done);
    hash.add(file, piece, what, progress);
    done += piece.size_bytes;
  }
  return hash.digest();
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<Seal> check_seal(const InputFile& file) {
  std::array<std::byte, sizeof(Block) + sizeof(std::uint64_t)> bytes{};
  if (file.size_bytes() < fields_bytes(kContiguousVersion) + sizeof(std::uint64_t)) return std::nullopt;
  file.read(0, std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), file.size_bytes())), "its first block");
  Block block;
  std::memcpy(&block, bytes.data(), sizeof block);
  if (std::memcmp(block.magic, kMagic, sizeof kMagic) != 0) return std::nullopt;
  const std::size_t n_hashed = fields_bytes(block.version);
  require(file.size_bytes() >= n_hashed + sizeof(std::uint64_t), ErrorCode::data_truncated,
          "{} is cut short: it has {} bytes", file.path(), file.size_bytes());
  std::uint64_t block_hash = 0;
  std::memcpy(&block_hash, bytes.data() + n_hashed, sizeof block_hash);
  require(XXH3_64bits(bytes.data(), n_hashed) == block_hash, ErrorCode::data_damaged,
          "{}: the first block of the file is damaged", file.path());
  require(block.version == kContiguousVersion || block.version == kChunkedVersion, ErrorCode::data_format,
          "{} was written in version {} of the format; this program reads versions {} and {}", file.path(),
          block.version, kContiguousVersion, kChunkedVersion);
  require(file.size_bytes() >= block.file_bytes, ErrorCode::data_truncated, "{} is cut short: it has {} of {} bytes",
          file.path(), file.size_bytes(), block.file_bytes);
  require(file.size_bytes() == block.file_bytes, ErrorCode::data_damaged, "{} has {} bytes, but was written with {}",
          file.path(), file.size_bytes(), block.file_bytes);
  require(plausible(block), ErrorCode::data_damaged, "{}: the first block of the file is damaged", file.path());
  require(hash_metadata(file, block) == block.metadata_xxh3, ErrorCode::data_damaged,
          "{}: the metadata of the file is damaged (its checksum differs), or another program changed it", file.path());
  Seal seal{StoredBytes::contiguous({block.images_offset, block.images_bytes}),
            {block.labels_offset, block.labels_bytes}};
  if (block.version == kChunkedVersion)
    seal.images = StoredBytes::in_a_row(block.images_bytes, block.chunk_bytes, block.images_offset, block.second_offset,
                                        block.stride);
  return seal;
}

void write_seal(const std::string& path, const Seal& seal) {
  const InputFile file(path);
  const StoredBytes& images = seal.images;
  Block block{};
  std::memcpy(block.magic, kMagic, sizeof kMagic);
  block.version = images.chunked() ? kChunkedVersion : kContiguousVersion;
  block.file_bytes = file.size_bytes();
  block.images_offset = images.offsets[0];
  block.images_bytes = images.size_bytes;
  block.labels_offset = seal.labels.offset;
  block.labels_bytes = seal.labels.size_bytes;
  if (images.chunked()) {
    const auto& offsets = images.offsets;
    block.chunk_bytes = images.chunk_bytes;
    block.second_offset = offsets.size() > 1 ? offsets[1] : 0;
    block.stride = offsets.size() > 2 ? offsets[2] - offsets[1] : block.chunk_bytes;
    require(images == StoredBytes::in_a_row(images.size_bytes, images.chunk_bytes, offsets[0], block.second_offset,
                                            block.stride),
            ErrorCode::internal, "{}: the chunks of its images lie in no row", path);
  }
  require(plausible(block), ErrorCode::internal, "{}: HDF5 laid it out unexpectedly", path);
  if (images.chunked()) block.breaks = find_breaks(file, images);
  block.metadata_xxh3 = hash_metadata(file, block);
  const std::size_t n_hashed = fields_bytes(block.version);
  const std::uint64_t block_hash = XXH3_64bits(&block, n_hashed);
  std::array<std::byte, sizeof block + sizeof block_hash> bytes{};
  std::memcpy(bytes.data(), &block, n_hashed);
  std::memcpy(bytes.data() + n_hashed, &block_hash, sizeof block_hash);
  write_at(path, 0, std::span(bytes).first(n_hashed + sizeof block_hash));
}

}  // namespace lockstep::data
