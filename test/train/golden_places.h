// The places of a tensor whose values golden files contain, as in test/golden/make_golden.py and
// make_language_golden.py.
#pragma once

#include <cstddef>

namespace lockstep::test {

inline std::size_t place(std::size_t i, std::size_t n_elements) { return i * 2654435761u % n_elements; }

}  // namespace lockstep::test
