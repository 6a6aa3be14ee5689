#include "checkpoint/model_file.h"

#include "checkpoint/reader.h"
#include "checkpoint/state_group.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kMetadataKey = "lockstep";
constexpr const char* kExported[] = {"model", "precision", "step", "inference"};

}  // namespace

bool is_safetensors(const std::string& path) { return path.ends_with(".safetensors"); }

ModelFile read_model_file(const std::string& path) {
  if (is_safetensors(path))
    return {
        .path = path, .state = state_of_metadata(read_safetensors_metadata(path)), .tensors = read_safetensors(path)};
  Reader reader(path);
  ModelFile out{.path = path, .state = reader.state(), .tensors = {}};
  const int layout = out.state.value("layout_version", kLayoutVersion);
  require(layout == kLayoutVersion, ErrorCode::checkpoint_version,
          "{} has tensors of layout {}; this program reads layout {}", path, layout, kLayoutVersion);
  for (const TensorEntry& entry : reader.tensors()) {
    const auto group = group_of(entry.path);
    if (group != StateGroup::parameters && group != StateGroup::statistics) continue;
    NamedTensor tensor{.name = tensor_name(entry.path),
                       .shape = entry.shape,
                       .values = std::vector<float>(static_cast<std::size_t>(entry.shape.n_elements()))};
    reader.read(entry, tensor.values);
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

std::map<std::string, std::string> export_metadata(const StateJson& state) {
  StateJson exported = StateJson::object();
  for (const char* key : kExported)
    if (state.contains(key)) exported[key] = state[key];
  return {{"format", "pt"}, {kMetadataKey, exported.dump()}};
}

StateJson state_of_metadata(const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(kMetadataKey);
  StateJson state =
      found == metadata.end() ? StateJson::object() : StateJson::parse(found->second, nullptr, /*throws=*/false);
  return state.is_object() ? state : StateJson::object();
}

}  // namespace lockstep::checkpoint
