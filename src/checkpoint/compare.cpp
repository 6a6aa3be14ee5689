#include "checkpoint/compare.h"

#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "checkpoint/checkpoint.h"
#include "checkpoint/composite.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/model_file.h"
#include "checkpoint/reader.h"
#include "checkpoint/tensor_names.h"

namespace lockstep::checkpoint {
namespace {

void compare_values(std::span<const float> a, std::span<const float> b, TensorDifference& out) {
  out.n_values = static_cast<std::int64_t>(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
    if (out.n_differing++ == 0) out.first_index = static_cast<std::int64_t>(i);
    // Equal infinities have equal bits. A difference that involves an infinity is infinite, and one that involves a NaN
    // is NaN.
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= out.max_absolute) && !std::isnan(out.max_absolute)) out.max_absolute = difference;
  }
}

std::vector<std::string> differing_keys(const nlohmann::json& a, const nlohmann::json& b) {
  std::set<std::string> keys;
  for (const auto& [key, value] : a.items())
    if (!b.contains(key) || b[key] != value) keys.insert(key);
  for (const auto& [key, value] : b.items())
    if (!a.contains(key)) keys.insert(key);
  return {keys.begin(), keys.end()};
}

/// The tensors of a checkpoint, which are read one by one, or the tensors of a model in another program's format.
class Tensors {
 public:
  explicit Tensors(const std::string& path) {
    if (!is_safetensors(path) && !is_model_directory(path)) {
      reader_.emplace(path);
      reader_->check_blocks();
      for (const TensorEntry& entry : reader_->tensors()) shapes_[entry.path] = entry.shape;
      return;
    }
    for (NamedTensor& tensor : from_torchvision(all_tensors(read_model_file(path)))) {
      shapes_[tensor.name] = tensor.shape;
      tensors_.emplace(tensor.name, std::move(tensor));
    }
  }

  bool is_checkpoint() const { return reader_.has_value(); }
  const std::map<std::string, Shape>& shapes() const { return shapes_; }
  void keep_weights() {
    std::erase_if(shapes_, [](const auto& tensor) { return !is_of_model(tensor.first); });
  }
  std::vector<float> read(const std::string& path) {
    return reader_ ? reader_->read(*reader_->find(path)) : tensors_.at(path).values();
  }
  const nlohmann::json& state() { return reader_->state(); }

 private:
  std::optional<Reader> reader_;
  std::map<std::string, Shape> shapes_;
  std::map<std::string, NamedTensor> tensors_;  // used if there is no reader
};

}  // namespace

Comparison compare(const std::string& path_a, const std::string& path_b) {
  Tensors a(path_a), b(path_b);
  const bool are_checkpoints = a.is_checkpoint() && b.is_checkpoint();
  if (!are_checkpoints) {
    a.keep_weights();
    b.keep_weights();
  }

  Comparison out;
  for (const auto& [path, shape] : a.shapes()) {
    const auto other = b.shapes().find(path);
    if (other == b.shapes().end()) {
      out.only_in_a.push_back(path);
      continue;
    }
    ++out.n_compared;
    TensorDifference difference;
    difference.path = path;
    difference.shape_a = shape;
    difference.shape_b = other->second;
    if (shape == other->second) {
      compare_values(a.read(path), b.read(path), difference);
      if (difference.n_differing == 0) continue;
    }
    out.differing.push_back(difference);
  }
  for (const auto& [path, shape] : b.shapes())
    if (!a.shapes().contains(path)) out.only_in_b.push_back(path);
  if (are_checkpoints) out.state_keys = differing_keys(a.state(), b.state());
  return out;
}

}  // namespace lockstep::checkpoint
