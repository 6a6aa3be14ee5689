#include "checkpoint/composite.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kHead = "lm_head.", kModel = "model.", kPart = "language_model.";
constexpr std::array<std::string_view, 2> kOtherParts{"model.vision_tower.", "model.multi_modal_projector."};

}  // namespace

bool is_composite(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("text_config") && json["text_config"].is_object();
}

std::optional<std::string> decoder_name(const std::string& name) {
  const std::string_view rest = name;
  if (rest.starts_with(kPart)) return name.substr(kPart.size());
  if (rest.starts_with(kModel) && rest.substr(kModel.size()).starts_with(kPart))  // in the memory of transformers
    return std::string(kModel) + name.substr(kModel.size() + kPart.size());
  const bool is_other = std::ranges::any_of(kOtherParts, [&](std::string_view part) { return rest.starts_with(part); });
  if (!is_other && (rest.starts_with(kModel) || rest.starts_with(kHead))) return name;
  return std::nullopt;
}

void separate_decoder(ModelFile& file, const std::string& config) {
  if (!is_composite(config)) return;
  for (NamedTensor& tensor : std::exchange(file.tensors, {})) {
    const std::optional<std::string> name = decoder_name(tensor.name);
    if (name) tensor.name = *name;
    (name ? file.tensors : file.carried).push_back(std::move(tensor));
  }
}

void name_as_part(std::vector<NamedTensor>& tensors) {
  for (NamedTensor& tensor : tensors)
    if (decoder_name(tensor.name) == tensor.name) tensor.name = std::string(kPart) + tensor.name;
}

}  // namespace lockstep::checkpoint
