// xxh3 of memory. Formula: lockstep/ops/hash.h.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/ops/hash.h"
#include "test/reference/ops.h"

namespace lockstep::reference {
namespace {

class ReferenceHash final : public Hash {
 public:
  explicit ReferenceHash(const HashDescription& d) : d_(d) {}
  std::string describe() const override { return "reference: all fused"; }
  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    *args.hash = XXH3_64bits(args.data, d_.size_bytes);
  }

 private:
  HashDescription d_;
};

}  // namespace

std::unique_ptr<Hash> make_hash(const HashDescription& description, const Context&) {
  return std::make_unique<ReferenceHash>(description);
}

}  // namespace lockstep::reference
