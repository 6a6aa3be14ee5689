#include "checkpoint/saver.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/file.h"
#include "base/outcome.h"
#include "base/signals.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/user_block.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

using Numbers = std::vector<std::uint64_t>;

std::string pack(const Numbers& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::uint64_t)};
}

Numbers unpack(std::string_view text, std::size_t n) {
  require(text.size() == n * sizeof(std::uint64_t), ErrorCode::internal,
          "the ranks of a save disagree: {} bytes arrived, {} numbers were expected", text.size(), n);
  Numbers numbers(n);
  if (n > 0) std::memcpy(numbers.data(), text.data(), text.size());
  return numbers;
}

std::string state_text(StateJson state) {
  state["format_version"] = kFormatVersion;
  try {
    return state.dump();  // keys are sorted
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::internal, "the state of a checkpoint is not valid text: {}", error.what());
  }
}

}  // namespace

Saver::Saver(std::string path, const std::vector<TensorSource>& tensors, int rank, int size)
    : path_(std::move(path)), rank_(rank), size_(size), position_(tensors.size()) {
  std::iota(position_.begin(), position_.end(), std::size_t{0});
  std::ranges::sort(position_, {}, [&](std::size_t i) -> const std::string& { return tensors[i].path; });
  std::uint64_t total = 0;
  for (const std::size_t i : position_) {
    const TensorSource& tensor = tensors[i];
    require(tensor.path.size() > 1 && tensor.path[0] == '/', ErrorCode::internal,
            "\"{}\" is not a name in a checkpoint", tensor.path);
    require(tensor.shape.n_elements() > 0, ErrorCode::checkpoint_mismatch, "{} has no elements: its shape is {}",
            tensor.path, tensor.shape.text());
    require(entries_.empty() || entries_.back().path != tensor.path, ErrorCode::internal, "{} occurs twice",
            tensor.path);
    entries_.push_back({tensor.path, tensor.shape, 0, 0});
    total += entries_.back().size_bytes();
  }

  std::uint64_t before = 0;
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    const std::uint64_t n_bytes = entries_[e].size_bytes();
    for (std::uint64_t begin = 0; begin < n_bytes; begin += kHashBlockBytes) {
      const std::uint64_t end = std::min(begin + kHashBlockBytes, n_bytes);
      // The rank whose shard contains the middle of the block. Doubles are exact enough, because every assignment
      // results in the same file.
      const double middle = static_cast<double>(before) + static_cast<double>(end - begin) / 2;
      const int owner = static_cast<int>(middle * size_ / static_cast<double>(total));
      blocks_.push_back({e, begin, end, std::min(owner, size_ - 1)});
      before += end - begin;
    }
  }
}

std::vector<std::size_t> Saver::tensors_of_shard() const {
  std::vector<std::size_t> tensors;
  for (const Block& block : blocks_)
    if (block.rank == rank_ && (tensors.empty() || tensors.back() != position_[block.entry]))
      tensors.push_back(position_[block.entry]);
  return tensors;
}

std::string Saver::run_phase(int phase, const std::vector<std::string>& before, const StateJson& state,
                             const TensorReader& read) {
  const bool first = rank_ == 0;
  switch (phase) {
    case 0:
      return first ? create(state) : "";
    case 1:
      return write_shard(before.at(0), read);
    case 2:
      return first ? write_metadata(before) : "";
    case 3:
      return hash_blocks(before.at(0));
    case 4:
      if (first) publish(before);
      return "";
    default:
      fail(ErrorCode::internal, "a save has {} phases, not {}", kPhases, phase);
  }
}

std::string Saver::create(const StateJson& state) {
  const Descriptor file = open_file(partial_name(path_), O_RDWR | O_CREAT | O_TRUNC);
  const std::string text = state_text(state);
  std::uint64_t total = kUserBlockBytes + metadata_allowance_bytes(entries_, text);
  for (const TensorEntry& entry : entries_) total += entry.size_bytes();
  set_length(file, partial_name(path_), total);  // a limit on file sizes fails here, before any work

  image_ = std::make_unique<MetadataImage>(entries_, text);
  Numbers places;
  for (const TensorEntry& entry : image_->tensors()) places.push_back(entry.offset);
  return pack(places);
}

std::string Saver::write_shard(std::string_view places, const TensorReader& read) const {
  const Numbers offsets = unpack(places, entries_.size());
  const std::string name = partial_name(path_);
  const Descriptor file = open_file(name, O_RDWR);
  Numbers hashes;
  std::span<const std::byte> bytes;
  std::size_t loaded = entries_.size();
  for (const Block& block : blocks_) {
    if (block.rank != rank_) continue;
    if (loaded != block.entry) {
      bytes = std::as_bytes(read(position_[block.entry]));
      require(bytes.size() == entries_[block.entry].size_bytes(), ErrorCode::internal, "{} has {} bytes instead of {}",
              entries_[block.entry].path, bytes.size(), entries_[block.entry].size_bytes());
      loaded = block.entry;
    }
    const auto content = bytes.subspan(block.begin, block.end - block.begin);
    hashes.push_back(hash_bytes(content));
    write_at(file, name, content, offsets[block.entry] + block.begin);
  }
  sync(file, name);
  return pack(hashes);
}

std::string Saver::write_metadata(const std::vector<std::string>& hashes) {
  std::string joined;  // the ranks hold consecutive blocks, so the blocks are in order
  for (const std::string& text : hashes) joined += text;
  const Numbers block_hashes = unpack(joined, blocks_.size());
  Numbers tensor_hashes;
  for (std::size_t i = 0; i < blocks_.size();) {
    std::size_t end = i;
    while (end < blocks_.size() && blocks_[end].entry == blocks_[i].entry) ++end;
    tensor_hashes.push_back(hash_list(std::span(block_hashes).subspan(i, end - i)));
    i = end;
  }
  image_->finish(tensor_hashes);

  const std::string name = partial_name(path_);
  const Descriptor file = open_file(name, O_RDWR);
  set_length(file, name, image_->file_bytes());
  const auto ranges = image_->metadata_ranges();
  for (const auto& range : ranges) {
    const std::vector<std::byte> bytes = image_->read(range);
    write_at(file, name, bytes, range.begin);
    // Readers can use this only if HDF5 has put all metadata into one place. Its block size is chosen so that it does.
    if (ranges.size() == 1) {
      metadata_end_ = range.end;
      metadata_hash_ = digest_bytes(bytes);
    }
  }
  sync(file, name);
  return pack({image_->file_bytes()});
}

std::string Saver::hash_blocks(std::string_view length) const {
  const std::uint64_t file_bytes = unpack(length, 1)[0];
  const std::string name = partial_name(path_);
  // Opened again, because on a network file system only a file that is opened later is sure to show what other ranks
  // wrote.
  const Descriptor file = open_file(name, O_RDONLY);
  const std::uint64_t n_blocks = n_hash_blocks(file_bytes - kUserBlockBytes);
  std::vector<std::byte> buffer;
  Numbers hashes;
  for (auto block = static_cast<std::uint64_t>(rank_); block < n_blocks; block += static_cast<std::uint64_t>(size_)) {
    const std::uint64_t begin = kUserBlockBytes + block * kHashBlockBytes;
    hashes.push_back(hash_range(file, name, begin, std::min(begin + kHashBlockBytes, file_bytes), buffer));
  }
  return pack(hashes);
}

void Saver::publish(const std::vector<std::string>& blocks) {
  UserBlock header;
  header.version = kFormatVersion;
  header.file_bytes = image_->file_bytes();
  header.metadata_end = metadata_end_;
  header.metadata_hash = metadata_hash_;
  const std::uint64_t n_blocks = n_hash_blocks(header.file_bytes - kUserBlockBytes);
  const auto n_ranks = static_cast<std::uint64_t>(size_);
  header.block_hashes.resize(n_blocks);
  for (std::uint64_t rank = 0; rank < n_ranks; ++rank) {
    const std::uint64_t n_of_rank = n_blocks / n_ranks + (rank < n_blocks % n_ranks);
    const Numbers hashes = unpack(blocks[rank], n_of_rank);
    for (std::uint64_t i = 0; i < n_of_rank; ++i) header.block_hashes[rank + i * n_ranks] = hashes[i];
  }
  header.digest = hash_list(header.block_hashes);

  const std::string name = partial_name(path_);
  const Descriptor file = open_file(name, O_RDWR);
  write_at(file, name, encode(header), 0);
  lockstep::publish(name, path_);
}

void Saver::discard() noexcept {
  image_.reset();
  remove_partial(partial_name(path_));
}

// ---- save(): the phases one after the other -------------------------------------------------------------------------

std::vector<float> read_canonical(const TensorSource& source) {
  std::vector<float> stored(source.n_read());
  source.read(stored);
  if (!source.unpack) return stored;
  std::vector<float> canonical(source.n_canonical());
  source.unpack(stored, canonical);
  return canonical;
}

void save(const std::string& path, const std::vector<TensorSource>& tensors, const StateJson& state, World& world) {
  std::optional<Saver> saver;
  all_agree(world, [&] {
    saver.emplace(path, tensors, world.rank(), world.size());
    return "";
  });
  std::vector<float> values;  // one tensor at a time
  const auto read = [&](std::size_t i) {
    throw_if_stopped();
    values = read_canonical(tensors[i]);
    return std::span<const float>(values);
  };
  try {
    std::vector<std::string> results;
    for (int phase = 0; phase < Saver::kPhases; ++phase)
      results = all_agree(world, [&] { return saver->run_phase(phase, results, state, read); });
  } catch (...) {
    if (world.rank() == 0) saver->discard();
    throw;
  }
}

}  // namespace lockstep::checkpoint
