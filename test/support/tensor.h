// Numbers for tests: made by Philox, so that every machine uses the same ones, and converted between layouts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/dtype.h"
#include "lockstep/op.h"
#include "lockstep/shape.h"

namespace lockstep::test {

/// Standard normal numbers; each `stream` gives different ones.
std::vector<float> random_normal(std::int64_t n_elements, std::uint32_t stream);
std::vector<float> random_uniform(std::int64_t n_elements, std::uint32_t stream, double low, double high);

/// Converts an activation of this (nhwc) shape from nhwc to `layout` and back.
std::vector<float> to_layout(const Shape& shape, Layout layout, const std::vector<float>& nhwc);
std::vector<float> from_layout(const Shape& shape, Layout layout, const std::vector<float>& blocked);
/// True if the layout exists for this shape: channel blocks of 16 need a multiple of 16.
bool fits(const Shape& shape, Layout layout);

/// Converts to the bits of bf16, rounding to nearest, ties to even; and back.
std::vector<std::uint16_t> bf16_bits(const std::vector<float>& values);
std::vector<float> from_bf16_bits(const std::vector<std::uint16_t>& bits);
/// The same for fp16; from 65,520 on, the result is infinite.
std::vector<std::uint16_t> fp16_bits(const std::vector<float>& values);
std::vector<float> from_fp16_bits(const std::vector<std::uint16_t>& bits);
/// Values as an activation of this type stores them: fp32, bf16 or fp16.
std::vector<float> rounded_to(DType dtype, const std::vector<float>& values);

std::vector<float> absolute(std::vector<float> values);
std::vector<double> to_double(const std::vector<float>& values);

std::string text(Layout layout);
std::string text(GradientMode mode);

}  // namespace lockstep::test
