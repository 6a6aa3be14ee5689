// Limits of encoded images (JPEG, PNG), which are checked before memory is allocated for the pixels.
#pragma once

#include <cstdint>

namespace lockstep::data {

/// Maximum number of pixels of an image. While a progressive JPEG image is decoded, each pixel needs 9 bytes.
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{1} << 26;
inline constexpr int kMaxImageSide = 65535;  // pixels
inline constexpr std::uint64_t kMaxImageBytes = std::uint64_t{1} << 28;

}  // namespace lockstep::data
