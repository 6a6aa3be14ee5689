#include "train/state_tensors.h"

#include <cstring>

#include "checkpoint/tensor_names.h"
#include "lockstep/bf16.h"

namespace lockstep::train {
namespace {

/// The names of the optimizer's states: "momentum", or "first_moment" and "second_moment".
std::vector<std::string> state_names(const OptimizerDescription& optimizer) {
  if (optimizer.kind == OptimizerDescription::Kind::adamw) return {"first_moment", "second_moment"};
  return optimizer.n_states() == 1 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{};
}

bool has_master(const graph::ParameterTable& table, const OptimizerDescription& optimizer, const graph::Parameter& p) {
  return optimizer.has_masters || p.begin >= table.n_in_compute_type();
}

}  // namespace

std::vector<StateTensor> state_tensors(const graph::ParameterTable& table, const OptimizerDescription& optimizer,
                                       Averages averages) {
  std::vector<StateTensor> out;
  using checkpoint::StateGroup;
  const auto dtype_of = [&](const graph::Parameter& p, int state) {
    if (state == StateTensor::kNoState) return has_master(table, optimizer, p) ? DType::fp32 : optimizer.weight_dtype;
    return state < optimizer.n_states() ? optimizer.state_dtype : DType::fp32;
  };
  const auto add = [&](StateGroup group, const std::string& prefix, int state) {
    for (const graph::Parameter& p : table.parameters()) {
      if (p.is_base || (state != StateTensor::kNoState && !p.trainable)) continue;
      for (const graph::ParameterPart& part : p.parts)
        out.push_back({.path = checkpoint::tensor_path(group, prefix + part.name),
                       .shape = part.shape,
                       .parameter = p.layout ? &p : nullptr,
                       .part = p.layout ? &part : nullptr,
                       .state = state,
                       .dtype = dtype_of(p, state),
                       .begin = p.begin + (p.layout ? 0 : part.begin),
                       .n_elements = p.layout ? p.n_elements : part.n_elements()});
    }
  };
  add(StateGroup::parameters, "", StateTensor::kNoState);
  const std::vector<std::string> states = state_names(optimizer);
  for (std::size_t i = 0; i < states.size(); ++i) add(StateGroup::optimizer, states[i] + "/", static_cast<int>(i));
  const auto add_statistics = [&](StateGroup group, int state) {
    for (const graph::RunningStatistic& s : table.statistics()) {
      if (state != StateTensor::kNoState && !s.trainable) continue;
      const auto channels = static_cast<std::size_t>(s.channels);
      const auto statistic = [&](const char* name, std::size_t begin) {
        out.push_back({.path = checkpoint::tensor_path(group, s.name + name),
                       .shape = {s.channels},
                       .state = state,
                       .begin = begin,
                       .n_elements = channels});
      };
      statistic(".running_mean", s.begin);
      statistic(".running_var", s.begin + channels);
    }
  };
  add_statistics(StateGroup::statistics, StateTensor::kNoState);
  if (averages == Averages::none) return out;
  add(StateGroup::averages, "", optimizer.n_states());
  add_statistics(StateGroup::averages, optimizer.n_states());
  return out;
}

checkpoint::TensorSource source_of(const StateTensor& tensor) {
  checkpoint::TensorSource source{.path = tensor.path, .shape = tensor.shape, .read = {}};
  const bool is_narrow = tensor.dtype != DType::fp32;
  if (!tensor.parameter && !is_narrow) return source;
  source.n_stored = is_narrow ? (tensor.n_elements + 1) / 2 : tensor.n_elements;
  source.unpack = [tensor, is_narrow](std::span<const float> stored, std::span<float> canonical) {
    const auto widen = [&](std::span<float> target) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(stored.data());
      for (std::size_t i = 0; i < target.size(); ++i) {
        Bf16 value;
        std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
        target[i] = to_float(value);
      }
    };
    if (!tensor.parameter) return widen(canonical);
    std::vector<float> widened(is_narrow ? tensor.n_elements : 0);
    widen(widened);
    graph::unpack_part(*tensor.parameter, *tensor.part, is_narrow ? std::span<const float>(widened) : stored,
                       canonical);
  };
  return source;
}

}  // namespace lockstep::train
