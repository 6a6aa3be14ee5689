// The one move-only owner of the handles of C libraries (MPI, HDF5, file descriptors, CUDA, NCCL).
// Traits: `using Type = ...; static Type null(); static void close(Type)`.
// Null is valid and is not closed. close() runs in destructors: it must report errors and never throw.
#pragma once

#include <utility>

namespace lockstep {

template <typename Traits>
class Handle {
 public:
  using Type = typename Traits::Type;

  Handle() = default;
  explicit Handle(Type value) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, Traits::null())) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      value_ = std::exchange(other.value_, Traits::null());
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  Type get() const { return value_; }
  explicit operator bool() const { return value_ != Traits::null(); }
  Type release() { return std::exchange(value_, Traits::null()); }
  void reset() {
    if (value_ != Traits::null()) Traits::close(std::exchange(value_, Traits::null()));
  }

 private:
  Type value_ = Traits::null();
};

}  // namespace lockstep
