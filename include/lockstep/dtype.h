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
