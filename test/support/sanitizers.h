// Tests are compiled once, without sanitizers, and linked with a library with or without them, so they ask at run time.
#pragma once

namespace lockstep::test {

/// True if the library under test is built with the address sanitizer, which makes it several times slower.
bool has_address_sanitizer();

}  // namespace lockstep::test
