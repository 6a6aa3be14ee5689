// The types of elements in memory, and the precisions that a step can compute in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace lockstep {

enum class DType : std::uint8_t { fp32, fp64, bf16, fp16, int32, uint8, e4m3, e5m2 };

/// Bytes of one element.
constexpr std::size_t size_bytes(DType type) {
  constexpr std::size_t kBytes[] = {4, 8, 2, 2, 4, 1, 1, 1};
  return kBytes[static_cast<std::size_t>(type)];
}

constexpr std::string_view name(DType type) {
  constexpr std::string_view kNames[] = {"fp32", "fp64", "bf16", "fp16", "int32", "uint8", "e4m3", "e5m2"};
  return kNames[static_cast<std::size_t>(type)];
}

/// A pointer, where an op accepts more than one type of elements. `Void` is void, or const void for what an op reads.
template <typename Void>
struct TypedData {
  template <typename T>
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;

  Void* data = nullptr;
  DType dtype = DType::fp32;

  constexpr TypedData() = default;
  constexpr TypedData(Void* data, DType dtype) : data(data), dtype(dtype) {}
  constexpr TypedData(Element<float>* data) : data(data) {}                       // NOLINT(google-explicit-constructor)
  constexpr TypedData(Element<double>* data) : data(data), dtype(DType::fp64) {}  // NOLINT(google-explicit-constructor)
  template <typename T>
  constexpr Element<T>* as() const {
    return static_cast<Element<T>*>(data);
  }
  /// Of fp32 or fp64.
  constexpr double operator[](std::int64_t i) const {
    return dtype == DType::fp32 ? double{as<float>()[i]} : as<double>()[i];
  }
};
using TypedPointer = TypedData<void>;
using TypedSums = TypedData<const void>;

/// The precision that a step computes in. tf32 is fp32 in memory and rounded inside the multiplication. fp8 is bf16 in
/// memory, and in training the products of transformer blocks round it to fp8 (lockstep/ops/matmul.h).
enum class Precision : std::uint8_t { fp32, tf32, bf16, fp16, fp8 };

/// The type of activations and of weights in the computation. Master weights, statistics and reductions are fp32 or
/// wider.
constexpr DType storage_type(Precision precision) {
  constexpr DType kTypes[] = {DType::fp32, DType::fp32, DType::bf16, DType::fp16, DType::bf16};
  return kTypes[static_cast<std::size_t>(precision)];
}

/// What a model trained in `precision` is evaluated and used in.
constexpr Precision inference_precision(Precision precision) {
  return precision == Precision::fp8 ? Precision::bf16 : precision;
}

constexpr std::string_view name(Precision precision) {
  constexpr std::string_view kNames[] = {"fp32", "tf32", "bf16", "fp16", "fp8"};
  return kNames[static_cast<std::size_t>(precision)];
}

}  // namespace lockstep
