// The layout of the weights of matrix products and embeddings: canonical, so that they can share a weight.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/error.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

class RowMajorLayout final : public ParameterLayout {
 public:
  explicit RowMajorLayout(std::size_t n_elements) : n_elements_(n_elements) {}
  std::size_t n_elements() const override { return n_elements_; }
  void pack(std::span<const float> canonical, float* parameter) const override {
    std::copy(canonical.begin(), canonical.end(), parameter);
  }
  void unpack(const float* parameter, std::span<float> canonical) const override {
    std::copy_n(parameter, canonical.size(), canonical.begin());
  }
  std::string describe() const override { return "canonical"; }

 private:
  std::size_t n_elements_;
};

/// `given`, which must be this layout, or a new one if it is null. `what` names the op in the message.
inline std::shared_ptr<const ParameterLayout> row_major_layout(const std::shared_ptr<const ParameterLayout>& given,
                                                               std::int64_t n_elements, const std::string& what) {
  if (!given) return std::make_shared<RowMajorLayout>(static_cast<std::size_t>(n_elements));
  require(dynamic_cast<const RowMajorLayout*>(given.get()) != nullptr, ErrorCode::internal,
          "{}: a weight in the layout {} is not one of the cuda backend", what, given->describe());
  return given;
}

}  // namespace lockstep::cuda
