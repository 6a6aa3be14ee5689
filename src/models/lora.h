// Low-rank adapters of a decoder (model.lora): which layers have them, and the names of their parameters, which are
// those of PEFT without its prefix: "model.layers.0.self_attn.q_proj.lora_A.weight".
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/config.h"

namespace lockstep::models {

inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";

inline bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kLoraA) || parameter.ends_with(kLoraB);
}

/// The values of model.lora.targets, and the layers that they stand for in transformers: {"q", "self_attn.q_proj"}.
struct LoraTarget {
  std::string_view name, layer;
};
inline constexpr LoraTarget kLoraTargets[] = {
    {"q", "self_attn.q_proj"}, {"k", "self_attn.k_proj"}, {"v", "self_attn.v_proj"}, {"o", "self_attn.o_proj"},
    {"gate", "mlp.gate_proj"}, {"up", "mlp.up_proj"},     {"down", "mlp.down_proj"},
};

/// The factor by which h B^T is multiplied.
inline double lora_scale(const Config::Model::Lora& lora) {
  const double rank = lora.rank;
  return lora.alpha / (lora.rslora ? std::sqrt(rank) : rank);
}

/// The names of the layers of the decoder layer `name` that have adapters.
inline std::vector<std::string> lora_layers(const Config::Model::Lora& lora, const std::string& name) {
  std::vector<std::string> out;
  for (const LoraTarget& target : kLoraTargets)
    if (std::ranges::find(lora.targets, target.name) != lora.targets.end())
      out.push_back(name + "." + std::string(target.layer));
  return out;
}

}  // namespace lockstep::models
