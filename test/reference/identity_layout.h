// The canonical form itself, in which the reference stores every parameter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/error.h"
#include "lockstep/op.h"

namespace lockstep::reference {

class IdentityLayout final : public ParameterLayout {
 public:
  explicit IdentityLayout(std::size_t n_elements) : n_elements_(n_elements) {}
  std::size_t n_elements() const override { return n_elements_; }
  void pack(std::span<const float> canonical, float* parameter) const override {
    std::copy(canonical.begin(), canonical.end(), parameter);
  }
  void unpack(const float* parameter, std::span<float> canonical) const override {
    std::copy(parameter, parameter + canonical.size(), canonical.begin());
  }
  std::string describe() const override { return "canonical"; }

 private:
  std::size_t n_elements_;
};

/// The requested layout, if it is this one, or a new one if the op may choose.
inline std::shared_ptr<const ParameterLayout> identity_layout(const std::shared_ptr<const ParameterLayout>& requested,
                                                              std::int64_t n_elements) {
  const auto n = static_cast<std::size_t>(n_elements);
  if (!requested) return std::make_shared<IdentityLayout>(n);
  require(dynamic_cast<const IdentityLayout*>(requested.get()) && requested->n_elements() == n,
          ErrorCode::not_supported,
          "the reference keeps weights in canonical form, {} elements; requested: {}, {} elements", n,
          requested->describe(), requested->n_elements());
  return requested;
}

}  // namespace lockstep::reference
