#include "train/state_tensors.h"

#include "checkpoint/state_group.h"

namespace lockstep::train {
namespace {

/// "momentum", or "first_moment" and "second_moment".
std::vector<std::string> state_names(const OptimizerDescription& optimizer) {
  if (optimizer.kind == OptimizerDescription::Kind::adamw) return {"first_moment", "second_moment"};
  return optimizer.n_states() == 1 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{};
}

}  // namespace

std::vector<StateTensor> state_tensors(const graph::ParameterTable& table, const OptimizerDescription& optimizer) {
  std::vector<StateTensor> out;
  using checkpoint::StateGroup;
  const auto add = [&](StateGroup group, const std::string& state, StateTensor::Arena arena, std::size_t arena_begin) {
    for (const graph::Parameter& p : table.parameters()) {
      if (arena == StateTensor::Arena::optimizer && !p.trainable) continue;
      for (const graph::ParameterPart& part : p.parts)
        out.push_back({.path = checkpoint::tensor_path(group, state + part.name),
                       .shape = part.shape,
                       .parameter = p.layout ? &p : nullptr,
                       .part = p.layout ? &part : nullptr,
                       .arena = arena,
                       .begin = arena_begin + p.begin + (p.layout ? 0 : part.begin),
                       .n_elements = p.layout ? p.n_elements : part.n_elements()});
    }
  };
  add(StateGroup::parameters, "", StateTensor::Arena::parameters, 0);
  const std::vector<std::string> states = state_names(optimizer);
  for (std::size_t i = 0; i < states.size(); ++i)
    add(StateGroup::optimizer, states[i] + "/", StateTensor::Arena::optimizer, i * table.n_trainable());
  for (const graph::RunningStatistic& s : table.statistics()) {
    const auto channels = static_cast<std::size_t>(s.channels);
    const auto statistic = [&](const char* name, std::size_t begin) {
      out.push_back({.path = checkpoint::tensor_path(StateGroup::statistics, s.name + name),
                     .shape = {s.channels},
                     .begin = begin,
                     .n_elements = channels});
    };
    statistic(".running_mean", s.begin);
    statistic(".running_var", s.begin + channels);
  }
  return out;
}

checkpoint::TensorSource source_of(const StateTensor& tensor) {
  checkpoint::TensorSource source{.path = tensor.path, .shape = tensor.shape, .read = {}};
  if (!tensor.parameter) return source;
  source.n_stored = tensor.n_elements;
  source.unpack = [parameter = tensor.parameter, part = tensor.part](std::span<const float> stored,
                                                                     std::span<float> canonical) {
    graph::unpack_part(*parameter, *part, stored, canonical);
  };
  return source;
}

}  // namespace lockstep::train
