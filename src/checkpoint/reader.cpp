#include "checkpoint/reader.h"

#include <algorithm>

#include "base/signals.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_file.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

std::uint64_t block_begin(std::uint64_t block) { return kUserBlockBytes + block * kHashBlockBytes; }

/// The maximum number of items that a message lists.
constexpr std::size_t kMaxNamed = 5;

std::string join(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kMaxNamed); ++i) text += (i ? ", " : "") + items[i];
  if (items.size() > kMaxNamed) text += fmt::format(" and {} more", items.size() - kMaxNamed);
  return text;
}

}  // namespace

Reader::Reader(std::string path)
    : path_(std::move(path)),
      file_(open_regular_file(path_, ErrorCode::cannot_open)),
      header_(read_user_block(file_, path_)) {}

void Reader::check_blocks() {
  if (blocks_checked_) return;
  std::vector<std::byte> buffer;
  std::vector<std::uint64_t> found;
  for (std::uint64_t block = 0; block < n_hash_blocks(header_.file_bytes - kUserBlockBytes); ++block)
    found.push_back(
        hash_range(file_, path_, block_begin(block), std::min(block_begin(block + 1), header_.file_bytes), buffer));
  if (hash_list(found) != header_.digest) fail(ErrorCode::checkpoint_damaged, "{}", describe_damage(found));
  blocks_checked_ = true;
}

std::string Reader::describe_damage(const std::vector<std::uint64_t>& found) {
  std::vector<std::string> blocks;
  for (std::uint64_t i = 0; i < header_.block_hashes.size(); ++i)
    if (found[i] != header_.block_hashes[i])
      blocks.push_back(fmt::format("{} to {}", block_begin(i), std::min(block_begin(i + 1), header_.file_bytes) - 1));
  const std::string where = blocks.empty() ? "" : fmt::format(" (checksum of bytes {})", join(blocks));

  if (header_.metadata_end > 0) {
    if (!metadata_is_sound())
      return fmt::format("{} is damaged in its HDF5 metadata (bytes {} to {})", path_, kUserBlockBytes,
                         header_.metadata_end - 1);
    std::vector<std::string> names;
    for (const TensorEntry& tensor : tensors())
      if (!is_sound(tensor))
        names.push_back(
            fmt::format("{} (bytes {} to {})", tensor.path, tensor.offset, tensor.offset + tensor.size_bytes() - 1));
    if (!names.empty()) return fmt::format("{} is damaged in {}", path_, join(names));
  }
  return fmt::format("{} is damaged: its checksum does not match{}", path_, where);
}

bool Reader::metadata_is_sound() const {
  std::vector<std::byte> buffer;
  return digest_range(file_, path_, kUserBlockBytes, header_.metadata_end, buffer) == header_.metadata_hash;
}

void Reader::load_structure() {
  if (structure_) return;
  if (!blocks_checked_) {
    if (header_.metadata_end == 0)
      check_blocks();
    else
      require(metadata_is_sound(), ErrorCode::checkpoint_damaged, "{} is damaged in its HDF5 metadata (bytes {} to {})",
              path_, kUserBlockBytes, header_.metadata_end - 1);
  }
  Structure structure = read_structure(file_.get(), path_, header_.file_bytes);
  state_ = nlohmann::json::parse(structure.state_text, nullptr, false);
  require(state_.is_object(), ErrorCode::checkpoint_damaged, "/state of {} is not a JSON object", path_);
  structure_ = std::move(structure);
}

const std::vector<TensorEntry>& Reader::tensors() {
  load_structure();
  return structure_->tensors;
}

const nlohmann::json& Reader::state() {
  load_structure();
  return state_;
}

std::int64_t Reader::step() {
  const auto& json = state();
  return json.contains("step") && json["step"].is_number_integer() ? json["step"].get<std::int64_t>() : -1;
}

const TensorEntry* Reader::find(const std::string& tensor) {
  const auto& all = tensors();
  const auto at = std::ranges::lower_bound(all, tensor, {}, &TensorEntry::path);
  return at != all.end() && at->path == tensor ? &*at : nullptr;
}

void Reader::read(const TensorEntry& tensor, std::span<float> values) const {
  throw_if_stopped();
  require(values.size_bytes() == tensor.size_bytes(), ErrorCode::internal, "{} has {} bytes, but {} were requested",
          tensor.path, tensor.size_bytes(), values.size_bytes());
  const auto bytes = std::as_writable_bytes(values);
  read_at(file_, path_, bytes, tensor.offset, ErrorCode::checkpoint_damaged);
  require(digest_bytes(bytes) == tensor.hash, ErrorCode::checkpoint_damaged, "{} is damaged in {} (bytes {} to {})",
          path_, tensor.path, tensor.offset, tensor.offset + tensor.size_bytes() - 1);
}

std::vector<float> Reader::read(const TensorEntry& tensor) const {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.n_elements()));
  read(tensor, values);
  return values;
}

void Reader::load(const std::vector<TensorTarget>& targets) {
  // All shapes are checked first, so that a model that does not match stays unchanged.
  std::vector<const TensorEntry*> entries;
  for (const TensorTarget& target : targets) {
    const TensorEntry* entry = find(target.path);
    require(entry != nullptr, ErrorCode::checkpoint_mismatch, "{} has no {}, which the model expects with the shape {}",
            path_, target.path, target.shape.text());
    require(entry->shape == target.shape, ErrorCode::checkpoint_mismatch,
            "{} of {} has the shape {}, the model expects {}", target.path, path_, entry->shape.text(),
            target.shape.text());
    entries.push_back(entry);
  }
  std::vector<float> values;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    values.resize(static_cast<std::size_t>(entries[i]->shape.n_elements()));
    read(*entries[i], values);
    require_usable(path_, targets[i].path, values);
    targets[i].write(values);
  }
}

bool Reader::is_sound(const TensorEntry& tensor) const {
  std::vector<std::byte> buffer;
  return digest_range(file_, path_, tensor.offset, tensor.offset + tensor.size_bytes(), buffer) == tensor.hash;
}

// ---- Whole files: every rank reads them -----------------------------------------------------------------------------

NamedTensor tensor_of(std::shared_ptr<const Reader> reader, const std::string& name, const TensorEntry& entry) {
  return {name, entry.shape, read_at_once([reader = std::move(reader), entry] { return reader->read(entry); })};
}

StateJson load(const std::string& path, const std::vector<TensorTarget>& tensors) {
  Reader reader(path);
  reader.load(tensors);
  return reader.state();
}

std::vector<NamedTensor> load_all(const std::string& path) {
  const auto reader = std::make_shared<Reader>(path);
  reader->check_blocks();
  std::vector<NamedTensor> tensors;
  for (const TensorEntry& entry : reader->tensors()) tensors.push_back(tensor_of(reader, entry.path, entry));
  return tensors;
}

Verdict verify(const std::string& path) {
  Verdict verdict;
  try {
    Reader reader(path);
    reader.check_blocks();
    for (const TensorEntry& tensor : reader.tensors())
      require(reader.is_sound(tensor), ErrorCode::checkpoint_damaged,
              "{} was written incorrectly: {} does not match its checksum", path, tensor.path);
    std::vector<float> values;
    for (const TensorEntry& tensor : reader.tensors()) {
      values.resize(static_cast<std::size_t>(tensor.shape.n_elements()));
      reader.read(tensor, values);
      require_usable(path, tensor.path, values);
    }
    verdict.step = reader.step();
    verdict.good = true;
    verdict.sentence = fmt::format("{} is valid: {} bytes, {} tensors, step {}", path, reader.header().file_bytes,
                                   reader.tensors().size(), verdict.step);
  } catch (const Error& error) {
    verdict.code = error.code();
    verdict.sentence = error.what();
  }
  return verdict;
}

}  // namespace lockstep::checkpoint
