// Tensors of models in tests.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/named_tensor.h"

namespace lockstep::test {

/// A copy in memory with other values.
inline checkpoint::NamedTensor edited(const checkpoint::NamedTensor& tensor,
                                      const std::function<void(std::vector<float>& values)>& edit) {
  std::vector<float> values = tensor.values();
  edit(values);
  return {tensor.name, tensor.shape, std::move(values)};
}

/// Copies in memory: those of a replica would change with it.
inline std::vector<checkpoint::NamedTensor> kept(const std::vector<checkpoint::NamedTensor>& tensors) {
  std::vector<checkpoint::NamedTensor> out;
  for (const checkpoint::NamedTensor& tensor : tensors) out.push_back(edited(tensor, [](std::vector<float>&) {}));
  return out;
}

}  // namespace lockstep::test
