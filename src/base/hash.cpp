#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "lockstep/error.h"

namespace lockstep {

std::uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

struct StreamingHash::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

StreamingHash::StreamingHash() : state_(std::make_unique<State>()) {
  require(state_->xxh3 != nullptr, ErrorCode::out_of_memory, "there is no memory for a checksum");
  XXH3_64bits_reset(state_->xxh3);
}
StreamingHash::~StreamingHash() = default;

void StreamingHash::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size());
}
std::uint64_t StreamingHash::digest() const { return XXH3_64bits_digest(state_->xxh3); }

}  // namespace lockstep
