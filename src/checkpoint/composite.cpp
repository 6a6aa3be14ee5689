#include "checkpoint/composite.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kModel = "model.", kPart = "language_model.";
constexpr std::array<std::string_view, 2> kOtherParts{"vision_tower.", "multi_modal_projector."};

bool is_of_other_part(std::string_view name) {
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());  // in the memory of transformers
  return std::ranges::any_of(kOtherParts, [&](std::string_view part) { return name.starts_with(part); });
}

}  // namespace

bool is_composite(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("text_config") && json["text_config"].is_object();
}

std::string decoder_name(const std::string& name) {
  const std::string_view rest = name;
  if (rest.starts_with(kPart)) return name.substr(kPart.size());
  if (rest.starts_with(kModel) && rest.substr(kModel.size()).starts_with(kPart))
    return std::string(kModel) + name.substr(kModel.size() + kPart.size());
  return name;
}

void separate_decoder(ModelFile& file, const std::string& config) {
  if (!is_composite(config)) return;
  for (NamedTensor& tensor : std::exchange(file.tensors, {})) {
    const bool is_other = is_of_other_part(tensor.name);
    if (!is_other) tensor.name = decoder_name(tensor.name);
    (is_other ? file.carried : file.tensors).push_back(std::move(tensor));
  }
}

std::vector<NamedTensor> all_tensors(const ModelFile& file) {
  std::vector<NamedTensor> all = file.tensors;
  all.insert(all.end(), file.carried.begin(), file.carried.end());
  return all;
}

void name_as_part(std::vector<NamedTensor>& tensors) {
  for (NamedTensor& tensor : tensors)
    if (!is_of_other_part(tensor.name)) tensor.name = std::string(kPart) + tensor.name;
}

}  // namespace lockstep::checkpoint
