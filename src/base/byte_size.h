// Sizes that users write: "5GB" is 5e9 bytes, as in save_pretrained() of transformers, and "5GiB" is 5 * 2^30 bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// An example of such a size, for messages.
inline constexpr const char* kByteSizeExample = "a size such as 5GB, 500MB or 1GiB";

/// A number, which may have a fraction, and a unit: B, KB, MB, GB, TB (powers of 1,000), KiB, MiB, GiB or TiB (powers
/// of 1,024), in upper or lower case; blanks may separate the two. Empty if the text is something else, or if the size
/// is less than a byte or more than 2^62 bytes.
std::optional<std::uint64_t> parse_byte_size(std::string_view text);

/// "6.15 MB"
std::string size_text(std::uint64_t size_bytes);

}  // namespace lockstep
