// The version of the HDF5 library that is loaded.
#pragma once

#include <string>

namespace lockstep::hdf5 {

/// "1.10.8". The call also starts the library.
std::string version();

}  // namespace lockstep::hdf5
