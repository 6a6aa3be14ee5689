#include "test/support/sanitizers.h"

namespace lockstep::test {

#ifdef __SANITIZE_ADDRESS__
bool has_address_sanitizer() { return true; }
#else
bool has_address_sanitizer() { return false; }
#endif

}  // namespace lockstep::test
