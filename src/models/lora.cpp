#include "models/lora.h"

#include <algorithm>
#include <cmath>

namespace lockstep::models {

double lora_scale(const Config::Model::Lora& lora) {
  const double rank = lora.rank;
  return lora.alpha / (lora.rslora ? std::sqrt(rank) : rank);
}

std::vector<std::string> lora_layers(const Config::Model::Lora& lora, const std::string& name) {
  std::vector<std::string> out;
  for (const LoraTarget& target : kLoraTargets)
    if (std::ranges::find(lora.targets, target.name) != lora.targets.end())
      out.push_back(name + "." + std::string(target.layer));
  return out;
}

}  // namespace lockstep::models
