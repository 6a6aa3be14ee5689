#include "checkpoint/huggingface.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "base/model_files.h"
#include "base/progress_bar.h"
#include "checkpoint/composite.h"
#include "checkpoint/peft.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kWeightMap = "weight_map";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

constexpr std::uint64_t kMaxConfigBytes = 1 << 20, kMaxIndexBytes = 64 << 20, kMaxTokenizerFileBytes = 256 << 20;

std::string file_in(const std::string& directory, const std::string& name) {
  return (fs::path(directory) / name).string();
}

/// Reads a file whose size is checked before memory is allocated.
std::string read_text(const std::string& path, std::uint64_t max_bytes) {
  const Descriptor file = open_regular_file(path, ErrorCode::cannot_open);
  const std::uint64_t n_bytes = size_bytes(file, path);
  require(n_bytes <= max_bytes, ErrorCode::model_file_damaged, "{} has {} bytes; expected at most {}", path, n_bytes,
          max_bytes);
  std::string text(n_bytes, '\0');
  read_at(file, path, std::as_writable_bytes(std::span(text)), 0, ErrorCode::model_file_damaged);
  return text;
}

Json parse_object(const std::string& text, const std::string& path) {
  Json json = parse_json(text, path, ErrorCode::model_file_damaged);
  require(json.is_object(), ErrorCode::model_file_damaged, "{} is damaged: it is not a JSON object", path);
  return json;
}

// -------------------------------------------------------------------------------------------------------- reading

/// For each file, the tensors that the index says it contains.
using Shards = std::map<std::string, std::set<std::string>>;

Shards read_index(const std::string& directory) {
  const std::string path = file_in(directory, kIndex);
  const Json index = parse_object(read_text(path, kMaxIndexBytes), path);
  require(index.contains(kWeightMap) && index[kWeightMap].is_object() && !index[kWeightMap].empty(),
          ErrorCode::model_file_damaged, "{} is damaged: it has no {}", path, kWeightMap);
  Shards shards;
  for (const auto& [tensor, file] : index[kWeightMap].items()) {
    require(file.is_string(), ErrorCode::model_file_damaged, "{} is damaged: {} has no file name", path, tensor);
    const std::string name = file.get<std::string>();
    const bool is_plain = name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
                          name.find("..") == std::string::npos;
    require(is_plain && is_safetensors(name), ErrorCode::model_file_damaged,
            "{} is damaged: {} should be in {}; expected the name of a .safetensors file in the same directory", path,
            tensor, Json(name).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
    shards[name].insert(tensor);
  }
  for (const auto& [name, tensors] : shards)
    require(is_there(file_in(directory, name)), ErrorCode::cannot_open, "{} is missing, which {} names for {} tensors",
            file_in(directory, name), kIndex, tensors.size());
  return shards;
}

/// Throws unless the file contains exactly the tensors that the index expects in it.
void check_shard(const std::string& path, const SafetensorsFile& file, const Shards& shards,
                 const std::set<std::string>& expected) {
  const auto damaged = ErrorCode::model_file_damaged;
  std::set<std::string> missing = expected;
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    if (missing.erase(entry.name) > 0) continue;
    const auto other =
        std::ranges::find_if(shards, [&](const auto& shard) { return shard.second.contains(entry.name); });
    require(other == shards.end(), damaged, "{} contains {}, which {} expects in {}: copy the directory again", path,
            entry.name, kIndex, other == shards.end() ? "" : other->first);
    fail(damaged, "{} contains {}, which {} does not name: copy the directory again", path, entry.name, kIndex);
  }
  require(missing.empty(), damaged, "{} lacks {}, which {} expects there: copy the directory again", path,
          missing.empty() ? "" : *missing.begin(), kIndex);
}

bool is_ignored(const std::string& tensor) { return tensor.ends_with(".rotary_emb.inv_freq"); }

void require_readable(const SafetensorsFile::Entry& entry, const std::string& path) {
  require(entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16", ErrorCode::checkpoint_mismatch,
          "{} contains {} as {}; models are read in F32, BF16 and F16", path, entry.name, entry.dtype);
}

void read_weights(const std::string& directory, ModelFile& out) {
  const bool is_single = is_there(file_in(directory, kWeights));
  require(is_single || is_there(file_in(directory, kIndex)), ErrorCode::cannot_open,
          "{} has neither {} nor {}: save the model with save_pretrained() of transformers", directory, kWeights,
          kIndex);
  const Shards shards = is_single ? Shards{{kWeights, {}}} : read_index(directory);
  std::optional<DType> dtype;
  for (const auto& [name, expected] : shards) {
    const std::string path = file_in(directory, name);
    const std::shared_ptr<const SafetensorsFile> file = SafetensorsFile::open(path);
    if (!is_single) check_shard(path, *file, shards, expected);
    for (const SafetensorsFile::Entry& entry : file->entries()) {
      if (is_ignored(entry.name)) continue;
      require_readable(entry, path);
      out.tensors.push_back(file->tensor(entry));
      const DType stored = out.tensors.back().dtype;
      dtype = !dtype || *dtype == stored ? stored : DType::fp32;
    }
  }
  out.dtype = dtype.value_or(DType::fp32);
}

bool is_tied(const Json& config, const std::string& path) {
  const auto found = config.find("tie_word_embeddings");
  const auto text = config.find("text_config");
  if (found == config.end() && text != config.end() && text->is_object()) return is_tied(*text, path);
  if (found == config.end() || found->is_null()) return false;
  require(found->is_boolean(), ErrorCode::model_file_damaged,
          "{} is damaged: tie_word_embeddings is neither true nor false", path);
  return found->get<bool>();
}

/// Keeps one of the two tensors if they are tied.
void unify_tied(ModelFile& file) {
  const auto embedding = std::ranges::find(file.tensors, kEmbedding, &NamedTensor::name);
  const auto head = std::ranges::find(file.tensors, kHead, &NamedTensor::name);
  if (head == file.tensors.end()) return;
  if (embedding == file.tensors.end()) {
    head->name = kEmbedding;
    return;
  }
  bool is_equal = embedding->shape == head->shape;
  for_each_piece(*embedding, [&](std::size_t first, std::span<const float> values) {
    if (!is_equal) return;
    std::vector<float> others(values.size());
    head->read(first, others);
    is_equal = std::memcmp(values.data(), others.data(), values.size_bytes()) == 0;
  });
  require(is_equal, ErrorCode::checkpoint_mismatch,
          "{} stores {} and {} with different values, but its {} sets tie_word_embeddings: set that to false, or "
          "remove the one that is not the model's",
          file.path, kEmbedding, kHead, kHuggingFaceConfig);
  file.tensors.erase(head);
}

// -------------------------------------------------------------------------------------------------------- writing

bool is_written_here(const std::string& name) {
  const bool is_shard = name.starts_with("model-") && is_safetensors(name);
  return name == kHuggingFaceConfig || name == kModelCard || name == kWeights || name == kIndex || is_shard ||
         name == kPeftConfig || name == "adapter_model.safetensors" ||
         std::ranges::find(kTokenizerFiles, std::string_view(name)) != kTokenizerFiles.end();
}

/// A directory may be replaced only if it contains nothing but files that this program writes.
void require_replaceable(const std::string& directory) {
  if (!is_there(directory)) return;
  require(is_folder(directory), ErrorCode::data_exists, "{} is a file; expected a directory, or a free name",
          directory);
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    require(entry.is_regular_file() && (is_written_here(name) || is_partial_name(name)), ErrorCode::data_exists,
            "{} is not replaced, since it contains {}, which does not belong to an exported model: move that away, or "
            "give another name",
            directory, name);
  }
}

/// Cuts the tensors into shards of consecutive tensors, so that no shard has more bytes than allowed.
std::vector<std::vector<NamedTensor>> cut(std::vector<NamedTensor> tensors, const HuggingFaceOptions& options) {
  std::vector<std::vector<NamedTensor>> shards(1);
  std::uint64_t shard_bytes = 0;
  for (NamedTensor& tensor : tensors) {
    const std::uint64_t tensor_bytes = tensor.n_elements() * size_bytes(options.dtype);
    if (!shards.back().empty() && shard_bytes + tensor_bytes > options.max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += tensor_bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

void write_weights(const std::string& directory, std::vector<NamedTensor> tensors, const HuggingFaceOptions& options) {
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  std::ranges::sort(tensors, {}, &NamedTensor::name);  // as the safetensors library does
  std::int64_t total_bytes = 0, done_bytes = 0;
  for (const NamedTensor& tensor : tensors)
    total_bytes += static_cast<std::int64_t>(tensor.n_elements() * size_bytes(options.dtype));
  ProgressBar bar("writing", total_bytes, total_bytes >= kShownFromBytes, WithoutTerminal::lines);
  const auto wrote = [&](std::uint64_t n_bytes) {
    done_bytes += static_cast<std::int64_t>(n_bytes);
    bar.update(done_bytes, "");
  };
  const std::vector<std::vector<NamedTensor>> shards = cut(std::move(tensors), options);
  if (shards.size() == 1) {
    write_safetensors(file_in(directory, kWeights), shards.front(), metadata, options.dtype, wrote);
    return;
  }
  Json weight_map = Json::object();
  std::uint64_t n_parameters = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const NamedTensor& tensor : shards[i]) {
      weight_map[tensor.name] = name;
      n_parameters += tensor.n_elements();
    }
    write_safetensors(file_in(directory, name), shards[i], metadata, options.dtype, wrote);
  }
  const Json index{
      {"metadata", {{"total_parameters", n_parameters}, {"total_size", n_parameters * size_bytes(options.dtype)}}},
      {kWeightMap, weight_map}};
  replace_file(file_in(directory, kIndex), index.dump(2) + "\n");
}

}  // namespace

bool is_huggingface(const std::string& path) {
  return is_folder(path) && is_there(file_in(path, kHuggingFaceConfig)) && !is_there(file_in(path, "checkpoints"));
}

ModelFile read_huggingface(const std::string& directory) {
  const std::string path = file_in(directory, kHuggingFaceConfig);
  ModelFile out{.path = directory, .state = StateJson::object(), .tensors = {}};
  out.config = read_text(path, kMaxConfigBytes);
  const Json config = parse_object(out.config, path);
  read_weights(directory, out);
  separate_decoder(out, out.config);
  if (is_tied(config, path)) unify_tied(out);
  return out;
}

void write_model_directory(const std::string& directory, const std::map<std::string, std::string>& files,
                           const std::function<void(const std::string& partial)>& write_weights) {
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "DIRECTORY/"
  std::error_code error;
  if (fs::is_symlink(path, error) && is_there(path)) path = fs::canonical(path);  // keeps the link
  require_replaceable(path.string());
  require_replaceable(partial_name(path.string()));
  PendingDirectory pending(path.string());
  write_weights(pending.partial_path());
  for (const auto& [name, content] : files) replace_file(file_in(pending.partial_path(), name), content);
  pending.publish();
}

void write_huggingface(const std::string& directory, std::vector<NamedTensor> tensors,
                       const std::map<std::string, std::string>& files, const HuggingFaceOptions& options) {
  if (is_composite(files.at(kHuggingFaceConfig))) name_as_part(tensors);
  write_model_directory(directory, files,
                        [&](const std::string& partial) { write_weights(partial, std::move(tensors), options); });
}

std::map<std::string, std::string> read_tokenizer_files(const std::string& directory) {
  require(is_folder(directory), ErrorCode::cannot_open,
          "{} is not a directory; expected one with the files of a tokenizer", directory);
  std::map<std::string, std::string> files;
  for (const char* name : kTokenizerFiles)
    if (is_there(file_in(directory, name))) files[name] = read_text(file_in(directory, name), kMaxTokenizerFileBytes);
  return files;
}

}  // namespace lockstep::checkpoint
