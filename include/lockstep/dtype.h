// Element types. Compute precision and storage type are one enum: a tensor says
// what its bytes are, a configuration says which of these the step computes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class DType : std::uint8_t { fp32, fp64, bf16, fp16, int32, int64, uint8, uint64 };

/// Bytes of one element.
constexpr std::size_t size_bytes(DType type) {
  switch (type) {
    case DType::fp64:
    case DType::int64:
    case DType::uint64:
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
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::uint64:
      return "uint64";
  }
  return "?";
}

/// What a step computes in. tf32 is fp32 in memory, rounded inside the multiply.
enum class Precision : std::uint8_t { fp32, tf32, bf16, fp16 };

}  // namespace lockstep
