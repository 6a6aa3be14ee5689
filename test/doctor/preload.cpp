// Faults of one rank, for tests of `lockstep doctor` that preload this library: a clock that is off by
// SKEWED_CLOCK_SECONDS, and a flipped bit in the product that ranks compare (FLIPPED_BIT).
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <vector>

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  using Function = int (*)(clockid_t, timespec*);
  static const auto next = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "clock_gettime"));
  static const char* const skew = std::getenv("SKEWED_CLOCK_SECONDS");
  const int status = next(clock, time);
  if (skew != nullptr && clock == CLOCK_REALTIME) time->tv_sec += std::atol(skew);
  return status;
}

std::uint64_t XXH3_64bits(const void* data, std::size_t size_bytes) {
  using Function = std::uint64_t (*)(const void*, std::size_t);
  static const auto next = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "XXH3_64bits"));
  constexpr std::size_t kProductBytes = std::size_t{512} * 512 * 4;
  if (std::getenv("FLIPPED_BIT") == nullptr || size_bytes != kProductBytes) return next(data, size_bytes);
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::vector<unsigned char> product(bytes, bytes + size_bytes);
  product[size_bytes / 3] ^= 1;
  return next(product.data(), size_bytes);
}

}  // extern "C"
