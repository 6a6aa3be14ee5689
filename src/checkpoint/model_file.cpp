#include "checkpoint/model_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "checkpoint/composite.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/peft.h"
#include "checkpoint/reader.h"
#include "checkpoint/tensor_names.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kVariance = ".running_var";
constexpr const char* kMetadataKey = "lockstep";
constexpr const char* kExported[] = {"model", "precision", "step", "inference", "base"};

/// Checks the types of the members that are used, where they are present. Their values are checked where they are used.
void check_state(const StateJson& state, const std::string& path) {
  const auto check = [&](const char* key, bool (*fits)(const StateJson&), const char* expected) {
    require(!state.contains(key) || fits(state[key]), ErrorCode::checkpoint_damaged,
            "{} describes its model wrongly: {}: expected {}, found {}", path, key, expected,
            state.contains(key) ? state[key].dump().substr(0, 80) : "");
  };
  const auto is_object = [](const StateJson& value) { return value.is_object(); };
  const auto is_text = [](const StateJson& value) { return value.is_string(); };
  const auto is_integer = [](const StateJson& value) { return value.is_number_integer(); };
  check("model", is_object, "an object with the keys of the model");
  check("inference", is_object, "an object that describes the inputs");
  check("base", is_object, "an object with the hash of the base");
  check("precision", is_text, "a text");
  check("step", is_integer, "a whole number");
  check("layout_version", is_integer, "a whole number");
}

void require_finite(const std::string& file, const std::string& tensor, std::span<const float> values) {
  if (is_finite(values)) return;
  const auto first = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  const auto n_others = std::ranges::count_if(values, [](float value) { return !std::isfinite(value); });
  fail(ErrorCode::checkpoint_damaged,
       "{} of {} is not finite: {} of its {} values {} infinite or NaN, the first of them number {} ({}); the training "
       "that wrote it had diverged",
       tensor, file, n_others, values.size(), n_others == 1 ? "is" : "are", first - values.begin(), *first);
}

/// The values must be finite.
void require_not_negative(const std::string& file, const std::string& tensor, std::span<const float> values) {
  const auto is_negative = [](float value) { return value < 0; };
  const auto first = std::ranges::find_if(values, is_negative);
  if (first == values.end()) return;
  const auto n_negative = std::ranges::count_if(values, is_negative);
  fail(ErrorCode::checkpoint_damaged,
       "{} of {} cannot be a variance: {} of its {} values {} negative, the first of them number {} ({})", tensor, file,
       n_negative, values.size(), n_negative == 1 ? "is" : "are", first - values.begin(), *first);
}

}  // namespace

bool is_safetensors(const std::string& path) { return path.ends_with(".safetensors"); }

bool is_model_directory(const std::string& path) { return is_huggingface(path) || is_peft(path); }

ModelFile read_model_file(const std::string& path, WeightsOf weights) {
  const bool is_checkpoint = !is_model_directory(path) && !is_safetensors(path);
  require(is_checkpoint || weights == WeightsOf::model, ErrorCode::config_conflict,
          "{} is not a checkpoint of Lockstep, and only these have moving averages of the weights: leave out --ema",
          path);
  if (is_huggingface(path)) return read_huggingface(path);
  if (is_peft(path)) return read_peft(path);
  if (is_safetensors(path)) {
    const std::shared_ptr<const SafetensorsFile> file = SafetensorsFile::open(path);
    ModelFile out{.path = path, .state = state_of_metadata(file->metadata(), path), .tensors = file->tensors()};
    separate_decoder(out, recorded_config(out.state));
    return out;
  }
  const auto reader = std::make_shared<Reader>(path);
  ModelFile out{.path = path, .state = reader->state(), .tensors = {}};
  check_state(out.state, path);
  const int layout = out.state.value("layout_version", kLayoutVersion);
  require(layout == kLayoutVersion, ErrorCode::checkpoint_format,
          "{} has tensors of layout {}; this program reads layout {}", path, layout, kLayoutVersion);
  bool has_averages = false;
  for (const TensorEntry& entry : reader->tensors()) {
    if (!is_of_model(entry.path)) continue;
    const std::string name = tensor_name(entry.path);
    const TensorEntry* const average =  // frozen parameters have none
        weights == WeightsOf::averages ? reader->find(tensor_path(StateGroup::averages, name)) : nullptr;
    require(average == nullptr || average->shape == entry.shape, ErrorCode::checkpoint_damaged,
            "{}: the average of {} has another shape", path, name);
    has_averages = has_averages || average != nullptr;
    out.tensors.push_back(tensor_of(reader, name, average != nullptr ? *average : entry));
  }
  require(has_averages || weights == WeightsOf::model, ErrorCode::config_conflict,
          "{} has no averages of the weights, since its run had no ema.decay: leave out --ema", path);
  separate_decoder(out, recorded_config(out.state));
  return out;
}

std::string recorded_config(const StateJson& state) {
  const StateJson model = state.value("model", StateJson::object());
  const auto config = model.find("config");
  return config != model.end() && config->is_string() ? config->get<std::string>() : "";
}

std::map<std::string, std::string> export_metadata(const StateJson& state) {
  StateJson exported = StateJson::object();
  for (const char* key : kExported)
    if (state.contains(key)) exported[key] = state[key];
  return {{"format", "pt"}, {kMetadataKey, exported.dump()}};
}

StateJson state_of_metadata(const std::map<std::string, std::string>& metadata, const std::string& path) {
  const auto found = metadata.find(kMetadataKey);
  if (found == metadata.end()) return StateJson::object();
  StateJson state = StateJson::parse(found->second, nullptr, /*throws=*/false);
  require(state.is_object(), ErrorCode::checkpoint_damaged,
          "{} describes its model wrongly: {} in its metadata: expected a JSON object, found {}", path, kMetadataKey,
          found->second.substr(0, 80));
  check_state(state, path);
  return state;
}

bool is_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t n_others = 0;  // accumulated without an early exit, so that the loop is vectorised
  for (const float value : values) n_others |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1 : 0;
  return n_others == 0;
}

bool is_usable(const std::string& tensor, std::span<const float> values) {
  return is_finite(values) &&
         !(tensor.ends_with(kVariance) && std::ranges::any_of(values, [](float v) { return v < 0; }));
}

void require_usable(const std::string& file, const std::string& tensor, std::span<const float> values) {
  require_finite(file, tensor, values);
  if (tensor.ends_with(kVariance)) require_not_negative(file, tensor, values);
}

void check_while_read(const std::string& file, std::vector<NamedTensor>& tensors) {
  for (NamedTensor& tensor : tensors)
    tensor.read = [file, original = tensor](std::size_t first, std::span<float> out) {
      original.read(first, out);
      if (!is_usable(original.name, out)) require_usable(file, original.name, original.values());
    };
}

}  // namespace lockstep::checkpoint
