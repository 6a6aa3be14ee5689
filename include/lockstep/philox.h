// Philox4x32-10, a counter-based generator: every random number is a function of
// (seed, purpose) and a counter, so it does not depend on ranks, threads or history.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
//   key     = (seed, purpose)
//   counter = (index, index_high, sample_or_step_or_tensor, epoch)
// test/golden/philox.py computes the same numbers.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Samples are numbered by one 32-bit part of the counter.
inline constexpr std::int64_t kMaxSamples = 0xffffffff;

enum class RandomPurpose : std::uint32_t {
  weights = 1,
  shuffle = 2,
  crop = 3,
  flip = 4,
  dropout = 5,
  synthetic = 6,
  resized_crop = 7,
  balance = 8,
  mix = 9,
  erase = 10,
  colour_jitter = 11,
  trivial_augment = 12,
  generate = 13,
  rounding = 14
};

/// One block: four independent 32-bit numbers.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

class Philox {
 public:
  /// `stream` is the sample, step or tensor; `epoch` 0 where there is none.
  constexpr Philox(std::uint32_t seed, RandomPurpose purpose, std::uint32_t stream, std::uint32_t epoch)
      : key_{seed, static_cast<std::uint32_t>(purpose)}, stream_(stream), epoch_(epoch) {}

  constexpr std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), stream_, epoch_},
                      key_);
  }

  /// Uniform in (0, 1), 53 bits; number 0 or 1 of the block.
  static constexpr double uniform(const std::array<std::uint32_t, 4>& b, int number) {
    const std::uint32_t high = b[static_cast<std::size_t>(2 * number)];
    const std::uint32_t low = b[static_cast<std::size_t>(2 * number + 1)];
    return (static_cast<double>(high >> 5) * 67108864.0 + static_cast<double>(low >> 6) + 0.5) / 9007199254740992.0;
  }

  /// Uniform integer in [0, n), n < 2^32, from one 32-bit number (multiply-shift; bias below n / 2^32).
  static constexpr std::uint32_t below(std::uint32_t random, std::uint32_t n) {
    return static_cast<std::uint32_t>((std::uint64_t{random} * n) >> 32);
  }

  /// Standard normal number i of this stream (Box-Muller; block i/2 gives numbers 2*(i/2) and 2*(i/2)+1).
  double normal(std::uint64_t i) const {
    const auto b = block(i / 2);
    const double radius = std::sqrt(-2.0 * std::log(uniform(b, 0)));
    const double angle = 6.283185307179586476925286766559 * uniform(b, 1);
    return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }

  constexpr std::array<std::uint32_t, 2> key() const { return key_; }
  constexpr std::uint32_t stream() const { return stream_; }
  constexpr std::uint32_t epoch() const { return epoch_; }

  /// Uniform number i of this stream in (0, 1).
  double uniform(std::uint64_t i) const { return uniform(block(i / 2), static_cast<int>(i % 2)); }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint32_t stream_;
  std::uint32_t epoch_;
};

/// FNV-1a, 32 bit: the `stream` of a parameter's initial weights is the hash of its name.
constexpr std::uint32_t name_hash(std::string_view name) {
  std::uint32_t h = 2166136261u;
  for (char c : name) h = (h ^ static_cast<std::uint8_t>(c)) * 16777619u;
  return h;
}

}  // namespace lockstep
