#include "inference/adapters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "base/hub_cache.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/peft.h"
#include "graph/nf4.h"
#include "inference/inference.h"
#include "lockstep/bf16.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/family.h"
#include "models/llama_tensors.h"
#include "models/lora.h"

namespace lockstep::inference {
namespace {

using checkpoint::ModelFile;
using checkpoint::NamedTensor;

constexpr const char* kRank = "lora.rank";
constexpr const char* kBasePrecision = "base_precision";
constexpr const char* kNameBase =
    "name the base with model.from=DIRECTORY, in `checkpoint import` and `export` with --base DIRECTORY, and in "
    "`checkpoint merge` as BASE";

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

/// The path of the base of adapters: `given`, or if that is empty, the one that the file names.
std::string find_base(const ModelFile& file, const std::string& given) {
  const std::string base = find_model(given.empty() ? file.state.value("base_path", std::string()) : given);
  require(!base.empty(), ErrorCode::model_mismatch, "{} has adapters, and does not record where their base is: {}",
          file.path, kNameBase);
  require(is_there(base), ErrorCode::model_mismatch, "{} has adapters for {}, which does not exist here: {}{}",
          file.path, base, kNameBase, hub_remedy(base));
  return base;
}

/// The description of a base model, in the form in which a state records it.
checkpoint::StateJson model_of(const ModelFile& base, const std::vector<std::string>& ignore_keys) {
  Config config;
  config.model.ignore_keys = ignore_keys;
  set_model(config, base);
  require(models::is_language_model(config.model.family), ErrorCode::model_mismatch,
          "{} is a {}, but adapters need a language model as their base: {}", base.path, config.model.family,
          kNameBase);
  return {{"family", config.model.family}, {"config", config.model.config}};
}

/// What the state of adapters records about them and about reading their base.
Config::Model recorded_with(const ModelFile& adapters) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : adapters.state["model"].items())
    if (key.starts_with("lora.") || key == "ignore_keys") keys.push_back(fmt::format("model.{}={}", key, value.dump()));
  return parse_recorded(keys, adapters.path).model;
}

/// Checks that every layer has the adapters of all targets, with shapes that match the base.
void check_adapters(const ModelFile& file, const models::LlamaConfig& config) {
  const Config::Model::Lora lora = lora_of(file);
  const models::TensorShapes shapes = shapes_of(file.tensors), of_base = models::llama_tensors(config);
  std::size_t n_expected = 0;
  for (std::int64_t i = 0; i < config.layers; ++i)
    for (const std::string& layer : models::lora_layers(lora, "model.layers." + std::to_string(i))) {
      const Shape weight = of_base.at(layer + ".weight");
      for (const auto& [suffix, shape] : {std::pair{models::kLoraA, Shape{lora.rank, weight[1]}},
                                          std::pair{models::kLoraB, Shape{weight[0], lora.rank}}}) {
        const auto found = shapes.find(layer + std::string(suffix));
        require(found != shapes.end(), ErrorCode::model_mismatch, "{} has no tensor {}{}, which the base needs: {}",
                file.path, layer, suffix, kNameBase);
        require(found->second == shape, ErrorCode::model_mismatch,
                "{}{} of {} has the shape {}, but {} beside this base: {}", layer, suffix, file.path,
                found->second.text(), shape.text(), kNameBase);
        ++n_expected;
      }
    }
  require(n_expected == shapes.size(), ErrorCode::model_mismatch,
          "{} has {} tensors of adapters, but this base has {} places for them: {}", file.path, shapes.size(),
          n_expected, kNameBase);
}

/// Turns the matrices of the layers into those with which the adapters were trained: quantised, and expanded to the
/// type in which the run computed.
void round_to_nf4(ModelFile& file) {
  const bool is_bf16 = file.state.value("precision", std::string()) == "bf16";
  for (NamedTensor& tensor : file.tensors) {
    const auto is_of = [&](const models::LoraTarget& target) {
      return tensor.name.ends_with("." + std::string(target.layer) + ".weight");
    };
    if (std::ranges::none_of(models::kLoraTargets, is_of)) continue;
    tensor.read = checkpoint::read_at_once([original = tensor, is_bf16] {
      std::vector<float> values = original.values();
      const Nf4Layout layout = Nf4Layout::of(std::array{original.shape[0]}, original.shape[1]);
      std::vector<std::byte> quantised(layout.size_bytes);
      graph::quantize_nf4(values, layout.matrices.front(), quantised);
      values = graph::dequantize_nf4(values.size(), layout.matrices.front(), quantised);
      if (is_bf16)
        for (float& value : values) value = to_float(to_bf16(value));
      return values;
    });
  }
}

/// Adds scale * B A to a weight.
NamedTensor::Read with_adapter(const NamedTensor& weight, const NamedTensor& of_a, const NamedTensor& of_b,
                               double scale) {
  return [original = weight.read, a = of_a.values(), b = of_b.values(), scale,
          in = static_cast<std::size_t>(weight.shape[1]),
          rank = static_cast<std::size_t>(of_a.shape[0])](std::size_t first, std::span<float> out) {
    original(first, out);
    std::vector<double> row(in);
    for (std::size_t at = 0, n = 0; at < out.size(); at += n) {
      const std::size_t o = (first + at) / in, begin = (first + at) % in;
      n = std::min(in - begin, out.size() - at);
      std::ranges::fill(row, 0.0);
      for (std::size_t r = 0; r < rank; ++r) {
        const double factor = scale * double{b[o * rank + r]};
        for (std::size_t i = 0; i < n; ++i) row[i] += factor * double{a[r * in + begin + i]};
      }
      for (std::size_t i = 0; i < n; ++i) out[at + i] = static_cast<float>(double{out[at + i]} + row[i]);
    }
  };
}

}  // namespace

bool holds_adapters(const ModelFile& file) {
  const auto model = file.state.find("model");
  if (model == file.state.end() || !model->contains(kRank)) return false;
  return !file.tensors.empty() &&
         std::ranges::all_of(file.tensors, [](const NamedTensor& t) { return models::is_adapter(t.name); });
}

Config::Model::Lora lora_of(const ModelFile& file) { return recorded_with(file).lora; }

std::string base_of(const Config::Model& model) {
  return model.from != Config::Model{}.from ? model.from : model.initialize_from;
}

std::vector<NamedTensor> carried_tensors(models::LlamaConfig& model, const ModelFile& file,
                                         const std::vector<std::string>& places) {
  if (model.composite.empty() || !file.carried.empty()) return file.carried;
  for (const std::string& place : places) {
    std::error_code error;
    const std::filesystem::path checkpoint = std::filesystem::weakly_canonical(place, error);
    for (const std::string& path : {place, (checkpoint.parent_path().parent_path() / "model").string()}) {
      if (place.empty() || !is_there(path)) continue;
      try {
        std::vector<NamedTensor> carried = checkpoint::read_model_file(path).carried;
        checkpoint::check_while_read(path, carried);
        if (!carried.empty()) return carried;
      } catch (const Error& problem) {
        log::warning("{}", problem.what());
      }
    }
  }
  model.composite.clear();
  std::vector<std::string> tried = places;
  std::erase(tried, "");
  log::warning(
      "the model is exported as its decoder alone, since its vision tower is not found{}: name the directory "
      "that has it, in a training with model.from and in `checkpoint export` with --base",
      tried.empty() ? "" : fmt::format(" in {}", fmt::join(tried, " or ")));
  return {};
}

void hash_while_read(std::vector<NamedTensor>& tensors, std::function<void(const std::string& hash)> done) {
  struct Progress {
    std::set<std::string> lines;  // of the tensors that have been read
    std::size_t n_tensors;
    std::function<void(const std::string& hash)> done;
  };
  struct Hashed {
    StreamingHash hash;
    std::size_t n_elements = 0;
  };
  const auto progress = std::make_shared<Progress>(Progress{{}, tensors.size(), std::move(done)});
  for (NamedTensor& tensor : tensors) {
    tensor.read = [progress, original = tensor.read, title = tensor.name + " " + tensor.shape.text(),
                   n_elements = tensor.n_elements(),
                   own = std::make_shared<Hashed>()](std::size_t first, std::span<float> out) {
      original(first, out);
      if (first != own->n_elements) return;  // it is read again
      own->hash.update(bytes_of(out));
      own->n_elements += out.size();
      if (own->n_elements < n_elements) return;
      progress->lines.insert(title + " " + hash_text(own->hash.digest()) + "\n");
      if (progress->lines.size() < progress->n_tensors) return;
      StreamingHash all;
      for (const std::string& line : progress->lines) all.update(bytes_of(line));
      progress->done(hash_text(all.digest()));
    };
  }
}

std::string hash_of_base(std::vector<NamedTensor> tensors) {
  std::string hash;
  hash_while_read(tensors, [&](const std::string& computed) { hash = computed; });
  checkpoint::read_through(tensors);
  return hash;
}

void require_same_base(const checkpoint::StateJson& state, const std::string& adapters, const std::string& hash,
                       const std::string& base) {
  const auto recorded = state.find("base");
  if (recorded == state.end() || !recorded->is_object()) return;
  const auto before = recorded->find("hash");
  if (before == recorded->end() || !before->is_string()) return;
  require(*before == hash, ErrorCode::model_mismatch,
          "{} has adapters for another base than {} (the hash of its weights is {}, not {}): {}", adapters,
          base.empty() ? "these random weights" : base, hash, before->get<std::string>(), kNameBase);
}

ModelFile with_base(ModelFile file, const std::string& base) {
  if (!holds_adapters(file)) return file;
  const std::string path = find_base(file, base);
  ModelFile of_base = checkpoint::read_model_file(path);
  require(!holds_adapters(of_base), ErrorCode::model_mismatch,
          "{} has adapters itself, but is named as the base of {}: {}", path, file.path, kNameBase);
  checkpoint::StateJson model = model_of(of_base, recorded_with(file).ignore_keys);
  check_adapters(file, models::parse_llama_config(model["config"].get<std::string>(), path));
  if (file.state.contains("base"))
    hash_while_read(of_base.tensors, [state = file.state, adapters = file.path, path](const std::string& hash) {
      require_same_base(state, adapters, hash, path);
    });
  file.state["model"].update(model);
  if (!file.state.contains("inference") && of_base.state.contains("inference"))
    file.state["inference"] = of_base.state["inference"];
  file.state["base_path"] = path;
  for (NamedTensor& tensor : of_base.tensors) file.tensors.push_back(std::move(tensor));
  file.carried = std::move(of_base.carried);
  return file;
}

ModelFile merged(ModelFile file) {
  if (!file.state.contains("model") || !file.state["model"].contains(kRank)) return file;
  if (file.state["model"].value(kBasePrecision, std::string()) == "nf4") round_to_nf4(file);
  const double scale = models::lora_scale(lora_of(file));
  std::unordered_map<std::string, NamedTensor*> by_name;
  for (NamedTensor& tensor : file.tensors) by_name[tensor.name] = &tensor;
  for (const NamedTensor& a : file.tensors) {
    if (!a.name.ends_with(models::kLoraA)) continue;
    const std::string layer = a.name.substr(0, a.name.size() - models::kLoraA.size());
    NamedTensor& weight = *by_name.at(layer + ".weight");
    weight.read = with_adapter(weight, a, *by_name.at(layer + std::string(models::kLoraB)), scale);
  }
  std::erase_if(file.tensors, [](const NamedTensor& tensor) { return models::is_adapter(tensor.name); });
  checkpoint::StateJson model = checkpoint::StateJson::object();
  for (const auto& [key, value] : file.state["model"].items())
    if (!key.starts_with("lora.") && key != kBasePrecision) model[key] = value;
  file.state["model"] = std::move(model);
  file.state.erase("base");
  file.state.erase("base_path");
  return file;
}

}  // namespace lockstep::inference
