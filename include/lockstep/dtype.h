// The types of elements in memory, and the precisions that a step can compute in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class DType : std::uint8_t { fp32, fp64, bf16, fp16, int32, uint8 };

/// Bytes of one element.
constexpr std::size_t size_bytes(DType type) {
  switch (type) {
    case DType::fp64:
      return 8;
    case DType::fp32:
    case DType::int32:
      return 4;
    case DType::bf16:
    case DType::fp16:
      return 2;
    case DType::uint8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name(DType type) {
  switch (type) {
    case DType::fp32:
      return "fp32";
    case DType::fp64:
      return "fp64";
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
    case DType::int32:
      return "int32";
    case DType::uint8:
      return "uint8";
  }
  return "?";
}

/// A pointer, where an op accepts more than one type of elements.
struct TypedPointer {
  void* data = nullptr;
  DType dtype = DType::fp32;

  constexpr TypedPointer() = default;
  constexpr TypedPointer(void* data, DType dtype) : data(data), dtype(dtype) {}
  constexpr TypedPointer(float* data) : data(data) {}                       // NOLINT(google-explicit-constructor)
  constexpr TypedPointer(double* data) : data(data), dtype(DType::fp64) {}  // NOLINT(google-explicit-constructor)
  template <typename T>
  constexpr T* as() const {
    return static_cast<T*>(data);
  }
};

/// The same for fp32 or fp64 that an op reads.
struct TypedSums {
  const void* data = nullptr;
  DType dtype = DType::fp32;

  constexpr TypedSums() = default;
  constexpr TypedSums(const void* data, DType dtype) : data(data), dtype(dtype) {}
  constexpr TypedSums(const float* data) : data(data) {}                       // NOLINT(google-explicit-constructor)
  constexpr TypedSums(const double* data) : data(data), dtype(DType::fp64) {}  // NOLINT(google-explicit-constructor)
  template <typename T>
  constexpr const T* as() const {
    return static_cast<const T*>(data);
  }
  constexpr double operator[](std::int64_t i) const {
    return dtype == DType::fp32 ? double{as<float>()[i]} : as<double>()[i];
  }
};

/// The precision that a step computes in. tf32 is fp32 in memory and rounded inside the multiplication.
enum class Precision : std::uint8_t { fp32, tf32, bf16, fp16 };

/// The type of activations and of weights in the computation. Master weights, statistics and reductions are fp32 or
/// wider.
constexpr DType storage_type(Precision precision) {
  switch (precision) {
    case Precision::fp32:
    case Precision::tf32:
      return DType::fp32;
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16:
      return DType::fp16;
  }
  return DType::fp32;
}

constexpr std::string_view name(Precision precision) {
  return precision == Precision::tf32 ? "tf32" : name(storage_type(precision));
}

}  // namespace lockstep
