// 64-bit hash of memory, to compare replicas: equal bytes have equal hashes on one backend. Two backends may use
// different hash functions (cpu: xxh3; cuda: kernels/cuda/hash.cu). Files are not affected, since their hashes are
// computed on the host.
#pragma once

#include <cstddef>

#include "lockstep/op.h"

namespace lockstep {

struct HashDescription {
  using Op = class Hash;
  static constexpr std::string_view kName = "hash";

  std::size_t size_bytes = 0;
};

struct HashCalls {
  struct Apply {
    const void* data = nullptr;
    std::uint64_t* hash = nullptr;  // written
  };
};

class Hash : public ApplyOp<HashDescription, HashCalls> {};

}  // namespace lockstep
