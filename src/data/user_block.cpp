#include "data/user_block.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using hdf5::kUserBlockBytes;

constexpr std::array<std::uint64_t, 2> kVersions{1, 2};
constexpr std::uint64_t kContiguousVersion = kVersions[0], kChunkedVersion = kVersions[1];
constexpr std::uint64_t kMaxMetadataBytes =
    1u << 30;  // includes 16 bytes per JPEG image or answer, 8 per 16 MiB of tokens
constexpr std::size_t kBufferBytes = 4u << 20;
constexpr std::size_t kMaxBreaks = 16;

/// The fields of the block, in file order. The xxh3 of the block itself follows.
struct Block {
  char magic[16];
  std::uint64_t version, file_bytes;
  std::uint64_t samples_offset, samples_bytes, index_offset, index_bytes;
  std::uint64_t metadata_xxh3;
  // fields of kChunkedVersion
  std::uint64_t chunk_bytes, second_offset, stride;
  std::array<std::uint64_t, kMaxBreaks> breaks;
};
static_assert(sizeof(Block) == 224 && offsetof(Block, chunk_bytes) == 72, "the block has no padding");

/// The bytes that the block's own xxh3 covers; the hash is stored after them.
std::size_t fields_bytes(std::uint64_t version) {
  return version == kChunkedVersion ? sizeof(Block) : offsetof(Block, chunk_bytes);
}

/// Hashes several ranges of a file, in order, as if they were one.
class RangeHash {
 public:
  void add(const InputFile& file, const ByteRange& range, const std::string& what,
           const std::function<void(std::uint64_t)>& progress) {
    buffer_.resize(std::min<std::uint64_t>(kBufferBytes, range.size_bytes));
    for (std::uint64_t done = 0; done < range.size_bytes;) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kBufferBytes, range.size_bytes - done));
      file.read(range.offset + done, {buffer_.data(), n}, what);
      hash_.update(std::span(buffer_).first(n));
      done += n;
      if (progress) progress(n);
    }
  }
  std::uint64_t digest() const { return hash_.digest(); }

 private:
  StreamingHash hash_;
  std::vector<std::byte> buffer_;
};

const std::uint64_t* breaks_end(const Block& block) {
  return std::ranges::find(block.breaks.begin(), block.breaks.end(), 0u);
}

/// The byte ranges of the index and the samples, in file order. The first chunk is a range of its own, since HDF5 puts
/// the index of the chunks after it. The chunks between two breaks form one range.
std::vector<ByteRange> data_ranges(const Block& block) {
  std::vector<ByteRange> ranges{{block.index_offset, block.index_bytes}, {block.samples_offset, block.samples_bytes}};
  if (block.version == kChunkedVersion) {
    const std::uint64_t n = StoredBytes::n_chunks(block.samples_bytes, block.chunk_bytes);
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

/// Whether the two parts are after the block and inside the file, and do not overlap. No sum or product of the file's
/// numbers overflows.
bool is_plausible(const Block& block) {
  const std::uint64_t file_bytes = block.file_bytes;
  if (block.version == kChunkedVersion) {
    if (block.chunk_bytes == 0 || block.chunk_bytes > file_bytes) return false;
    const std::uint64_t n = StoredBytes::n_chunks(block.samples_bytes, block.chunk_bytes);
    if (n < 2 || block.stride < block.chunk_bytes || n > file_bytes / block.chunk_bytes ||
        n - 1 > file_bytes / block.stride + 1)
      return false;
    for (const std::uint64_t* b = block.breaks.begin(); b != breaks_end(block); ++b)
      if (*b < 2 || *b >= n || (b != block.breaks.begin() && *b <= b[-1])) return false;
  }
  std::uint64_t end = kUserBlockBytes;
  for (const ByteRange& r : data_ranges(block)) {
    if (r.offset < end || r.offset > file_bytes || r.size_bytes > file_bytes - r.offset) return false;
    end = r.end();
  }
  return true;
}

std::uint64_t hash_metadata(const InputFile& file, const Block& block, const PartNames& names) {
  std::vector<ByteRange> parts;
  std::uint64_t end = kUserBlockBytes;
  for (const ByteRange& r : data_ranges(block)) {
    parts.push_back({end, r.offset - end});
    end = r.end();
  }
  parts.push_back({end, file.size_bytes() - end});
  std::uint64_t total = 0;
  for (const ByteRange& part : parts) total += part.size_bytes;
  require(total <= kMaxMetadataBytes, ErrorCode::data_damaged,
          "{} has {} bytes that are neither {} nor {}, which is more than a data set can have", file.path(), total,
          names.samples, names.index);
  RangeHash hash;
  for (const ByteRange& part : parts) hash.add(file, part, "its metadata", {});
  return hash.digest();
}

/// The chunks, from the third on, that have something other than zeros before them: HDF5 may use the gaps that
/// alignment leaves for metadata.
std::array<std::uint64_t, kMaxBreaks> find_breaks(const InputFile& file, const StoredBytes& images) {
  std::array<std::uint64_t, kMaxBreaks> breaks{};
  std::size_t n_breaks = 0;
  std::vector<std::byte> gap;
  for (std::size_t i = 2; i < images.offsets.size(); ++i) {
    const std::uint64_t end = images.offsets[i - 1] + images.chunk_bytes;
    gap.resize(images.offsets[i] - end);
    file.read(end, gap, "the bytes between its images");
    if (std::ranges::all_of(gap, [](std::byte b) { return b == std::byte{0}; })) continue;
    require(n_breaks < kMaxBreaks, ErrorCode::library,
            "{}: this version of HDF5 puts metadata between more than {} of the chunks; --chunk 0 avoids chunks",
            file.path(), kMaxBreaks);
    breaks[n_breaks++] = i;
  }
  return breaks;
}

}  // namespace

std::uint64_t hash_stored(const InputFile& file, const StoredBytes& stored, const std::string& what,
                          const std::function<void(std::uint64_t)>& progress) {
  RangeHash hash;
  for (std::uint64_t done = 0; done < stored.size_bytes;) {
    const ByteRange range = stored.contiguous_range(done, stored.size_bytes - done);
    hash.add(file, range, what, progress);
    done += range.size_bytes;
  }
  return hash.digest();
}

std::optional<UserBlock> read_user_block(const InputFile& file) {
  std::array<std::byte, sizeof(Block) + sizeof(std::uint64_t)> bytes{};
  if (file.size_bytes() < fields_bytes(kContiguousVersion) + sizeof(std::uint64_t)) return std::nullopt;
  const auto head = std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), file.size_bytes()));
  file.read(0, head, "its user block");
  const hdf5::FileKind kind = hdf5::kind_of(head);
  if (kind != hdf5::FileKind::images && kind != hdf5::FileKind::text) return std::nullopt;
  const PartNames names = part_names(kind);
  Block block;
  std::memcpy(&block, bytes.data(), sizeof block);
  const std::size_t n_hashed = fields_bytes(block.version);
  require(file.size_bytes() >= n_hashed + sizeof(std::uint64_t), ErrorCode::data_damaged,
          "{} is truncated: it has {} bytes", file.path(), file.size_bytes());
  std::uint64_t block_hash = 0;
  std::memcpy(&block_hash, bytes.data() + n_hashed, sizeof block_hash);
  hdf5::check_user_block(file.path(), std::span(bytes).first(n_hashed),
                         {.stored_hash = block_hash,
                          .version = block.version,
                          .known_versions = kVersions,
                          .recorded_bytes = block.file_bytes,
                          .file_bytes = file.size_bytes()},
                         {.damaged = ErrorCode::data_damaged, .unknown_version = ErrorCode::data_format});
  require(is_plausible(block), ErrorCode::data_damaged,
          "{} is damaged in its user block: the positions of {} and {} are not possible", file.path(), names.samples,
          names.index);
  require(hash_metadata(file, block, names) == block.metadata_xxh3, ErrorCode::data_damaged,
          "{}: the metadata of the file is damaged (its checksum does not match), or another program changed it",
          file.path());
  UserBlock out{StoredBytes::contiguous({block.samples_offset, block.samples_bytes}),
                {block.index_offset, block.index_bytes},
                kind};
  if (block.version == kChunkedVersion)
    out.samples = StoredBytes::in_a_row(block.samples_bytes, block.chunk_bytes, block.samples_offset,
                                        block.second_offset, block.stride);
  return out;
}

void write_user_block(const std::string& path, const UserBlock& user_block) {
  const InputFile file(path);
  const StoredBytes& samples = user_block.samples;
  const PartNames names = part_names(user_block.kind);
  const std::string_view magic = user_block.kind == hdf5::FileKind::text ? hdf5::kTextMagic : hdf5::kImagesMagic;
  Block block{};
  std::memcpy(block.magic, magic.data(), sizeof block.magic);
  block.version = samples.chunked() ? kChunkedVersion : kContiguousVersion;
  block.file_bytes = file.size_bytes();
  block.samples_offset = samples.offsets[0];
  block.samples_bytes = samples.size_bytes;
  block.index_offset = user_block.index.offset;
  block.index_bytes = user_block.index.size_bytes;
  if (samples.chunked()) {
    const auto& offsets = samples.offsets;
    block.chunk_bytes = samples.chunk_bytes;
    block.second_offset = offsets.size() > 1 ? offsets[1] : 0;
    block.stride = offsets.size() > 2 ? offsets[2] - offsets[1] : block.chunk_bytes;
    require(samples == StoredBytes::in_a_row(samples.size_bytes, samples.chunk_bytes, offsets[0], block.second_offset,
                                             block.stride),
            ErrorCode::internal, "{}: the chunks of its {} are not stored at equal distances", path, names.samples);
  }
  require(is_plausible(block), ErrorCode::internal, "{}: HDF5 placed {} and {} unexpectedly", path, names.samples,
          names.index);
  if (samples.chunked()) block.breaks = find_breaks(file, samples);
  block.metadata_xxh3 = hash_metadata(file, block, names);
  const std::size_t n_hashed = fields_bytes(block.version);
  const std::uint64_t block_hash = hash_bytes(std::as_bytes(std::span(&block, 1)).first(n_hashed));
  std::array<std::byte, sizeof block + sizeof block_hash> bytes{};
  std::memcpy(bytes.data(), &block, n_hashed);
  std::memcpy(bytes.data() + n_hashed, &block_hash, sizeof block_hash);
  write_at(open_file(path, O_WRONLY), path, std::span(bytes).first(n_hashed + sizeof block_hash), 0);
}

}  // namespace lockstep::data
